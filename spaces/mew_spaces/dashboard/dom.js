// DOM helpers. Text is only ever inserted as text nodes, so nothing a participant sends is parsed as HTML.

/** Return an element of the page by its id. */
export const byId = (id) => document.getElementById(id);

/** Set an element's text. Unchanged text is left alone, because screen readers would repeat it. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an element's text, or hide the element if there is none. */
export function setTextOrHide(node, text) {
  setText(node, text ?? "");
  node.hidden = !text;
}

/** Create an element. Children are nodes or strings. A button submits no form unless its type is set to "submit". */
export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (tag === "button") node.type = "button";
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Create an element with text of unknown writing direction. */
export function makeText(tag, className, text) {
  const node = make(tag, className, text);
  node.dir = "auto";
  return node;
}

/** Copy a text, and say so on a button. */
export async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    setText(button, "Copied");
  } catch {
    setText(button, "Not copied: the browser refused");
  }
}

/** Create an SVG element with attributes. */
export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** An option of a select, from its value and label. */
export const makeOption = ([value, label]) => Object.assign(make("option", "", label), { value });

/** A select with options [value, label]. */
export function makeSelect(options) {
  const node = make("select", "");
  node.append(...options.map(makeOption));
  return node;
}
