// DOM helpers. Text is only inserted as text nodes, so text of participants is never parsed as HTML.

/** Return an element of the page by its id. */
export const byId = (id) => document.getElementById(id);

const LONGEST_PRESS_MS = 2_000; // the end of a press may be missing, for example outside the window
const RELEASE_MS = 100; // the time between the end of a touch and its click
const MOST_WORD = 1_000; // characters without a possible line break
const MOST_CHANGES = 300; // of script or direction in one paragraph
const CONTROL = -1;

/**
 * A text as a child of a node. Browsers lay out a paragraph in quadratic time where its script or direction changes
 * often, and a long word too: such a text becomes several paragraphs.
 */
export function paragraphs(text) {
  if (text.length <= MOST_CHANGES) return text;
  const found = document.createDocumentFragment();
  let [start, changes, word, script] = [0, 0, 0, 0];
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    const now = scriptOf(code);
    if (now !== undefined && (now !== script || now === CONTROL)) changes += 1;
    script = now ?? script;
    word = code === 32 || code === 10 || code === 9 ? 0 : word + 1;
    if (code === 10) changes = 0; // a paragraph ends
    const isHalf = code >= 0xd800 && code < 0xdc00 && text.charCodeAt(at + 1) >> 10 === 0x37;
    if ((changes <= MOST_CHANGES && word < MOST_WORD) || isHalf) continue;
    found.append(make("span", "paragraph", document.createTextNode(text.slice(start, at + 1))));
    [start, changes, word] = [at + 1, 0, 0];
  }
  if (start === 0) return text;
  found.append(text.slice(start));
  return found;
}

/** The writing that a UTF-16 code belongs to, roughly; undefined for what belongs to any. */
function scriptOf(code) {
  if (code < 0x80) return (code >= 48 && code < 58) || (code >= 65 && code < 91) || (code >= 97 && code < 123) ? 0 : undefined;
  if (code < 0x250) return 0;
  if (code < 0x370) return undefined; // marks
  if (code >= 0x590 && code < 0x900) return 0x590; // from right to left
  if (code >= 0x2000 && code < 0x2c00) return (code >= 0x200e && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ? CONTROL : undefined;
  if ((code >= 0x2e80 && code < 0xa000) || (code >= 0xac00 && code < 0xd800)) return 0x2e80; // East Asian
  if (code >= 0xdc00 && code < 0xe000) return undefined; // the second half of a pair
  return code >> 7;
}

let pressedMs = -Infinity;
let releasing;

/** Whether a control is being pressed. If it were drawn again before its release, the browser would make no click of the two. */
export const isPressed = () => performance.now() - pressedMs < LONGEST_PRESS_MS;

function press({ target }) {
  clearTimeout(releasing);
  if (target.closest?.("a, button, summary, [role=option]")) pressedMs = performance.now();
}

function release() {
  clearTimeout(releasing);
  pressedMs = -Infinity;
}

function releaseSoon() {
  clearTimeout(releasing);
  releasing = setTimeout(release, RELEASE_MS);
}

const LISTENING = { capture: true, passive: true };
for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, press, LISTENING);
for (const name of ["pointerup", "pointercancel", "keyup"]) document.addEventListener(name, releaseSoon, LISTENING);
document.addEventListener("click", release, LISTENING); // the effect of a click is shown at once

/** Set an element's text. Unchanged text is left alone, because screen readers would repeat it. */
export function setText(node, text) {
  if (node.textContent !== text) node.replaceChildren(...(text === "" ? [] : [paragraphs(text)]));
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
  for (const child of children) node.append(typeof child === "string" ? paragraphs(child) : child);
  return node;
}

/** Replace the children of a node. The focus stays on the same element, or on the new one with the same `data-key`. */
export function replaceChildren(node, children) {
  const focused = node.contains(document.activeElement) ? document.activeElement : undefined;
  node.replaceChildren(...children);
  if (!focused) return;
  const { key } = focused.dataset;
  const next = focused.isConnected ? focused : key && [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  next?.focus({ preventScroll: true });
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
