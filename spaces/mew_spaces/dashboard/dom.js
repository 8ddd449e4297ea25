// The few things every part does to the page. Text goes in as text nodes only; nothing here reads markup.

/** The element of an id; the page always has it. */
export const byId = (id) => document.getElementById(id);

/** Set an element's text, and leave it alone when it already says so (readers aloud would repeat it). */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an element's text, or hide the element when there is nothing to say. */
export function sayOrHide(node, text) {
  say(node, text ?? "");
  node.hidden = !text;
}

/** A new element. Children are nodes or texts. */
export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** A new element around a text of unknown direction. */
export function makeText(tag, className, text) {
  const node = make(tag, className, text);
  node.dir = "auto";
  return node;
}

/** A new SVG element with its attributes. */
export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}
