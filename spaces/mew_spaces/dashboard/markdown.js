// Markdown as DOM nodes. markdown-it reads the text; nodes are built from its tokens one by one, so text never becomes markup. Pictures
// become links, so that a message cannot make the browser request anything. Nothing is omitted: text that Markdown would hide, or that is
// nested too deeply, stays text.

import { make, paragraphs } from "./dom.js";
import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";

const MAX_NESTING = 20; // a text with deeper levels is shown as it is, because the parser would omit them
const MOST_CHARS = 20_000; // browsers lay out thousands of boxes in one paragraph in more than linear time; the rest is shown as it is
const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);
const TAGS = { blockquote: "blockquote", bullet_list: "ul", em: "em", list_item: "li", paragraph: "p", s: "s", strong: "strong", tbody: "tbody", td: "td", th: "th", thead: "thead", tr: "tr" };

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: MAX_NESTING });
parser.disable("reference"); // a definition is not shown
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
Object.assign(parser, { validateLink: () => true, normalizeLink: String, normalizeLinkText: String }); // `safeAddress` decides

/** The address if it is safe to open, else undefined. [pure] */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SAFE_SCHEMES.has(url.protocol) ? url.href : undefined;
  } catch {
    return undefined; // relative addresses would lead into this page's own origin
  }
}

/** Build the nodes of a Markdown text. */
export function render(text) {
  const root = make("div", "markdown");
  const tokens = parser.parse(text.slice(0, MOST_CHARS), {});
  if (tokens.some((token) => token.level >= MAX_NESTING - 1)) root.append(make("p", "as-is", text.slice(0, MOST_CHARS)));
  else build(tokens, root);
  if (text.length > MOST_CHARS) root.append(make("p", "as-is", text.slice(MOST_CHARS)));
  root.dir = "auto"; // at the end, because browsers compute the direction again after each child
  return root;
}

/** Append the nodes of tokens to a node. */
function build(tokens, root) {
  const path = [root];
  for (const token of tokens) {
    const parent = path.at(-1);
    if (token.hidden) continue; // the paragraph of a short list item
    if (token.type === "inline") build(token.children, parent);
    else if (token.nesting > 0) path.push(opened(token, parent));
    else if (token.nesting < 0) path.pop();
    else parent.append(leaf(token));
  }
}

/** Append the node of an opening token to its parent. Returns the node that takes the content. */
function opened(token, parent) {
  const name = token.type.slice(0, -"_open".length);
  if (name === "link") return link(token.attrGet("href"), parent);
  if (name === "table") {
    const table = make("table", "");
    parent.append(make("div", "table", table));
    return table;
  }
  const node = name === "heading" ? make("p", `heading heading-${token.tag.slice(1)}`) : make(TAGS[name] ?? token.tag, ""); // the page itself uses h1 to h6
  const start = Number(token.attrGet("start") ?? 1);
  if (name === "ordered_list" && start !== 1) node.start = start;
  parent.append(node);
  return node;
}

function link(given, parent) {
  const address = safeAddress(given);
  const node = make(address ? "a" : "span", "");
  parent.append(node);
  if (address) Object.assign(node, { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address });
  else parent.append(` (${given})`);
  return node;
}

/** The node of a token without content tokens. */
function leaf(token) {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return make("br", "");
    case "hr":
      return make("hr", "");
    case "code_inline":
      return make("code", "", token.content);
    case "fence":
    case "code_block":
      return code(token);
    case "image": {
      const picture = make("span", "");
      build(token.children, link(token.attrGet("src"), picture));
      return picture;
    }
    default:
      return paragraphs(token.content);
  }
}

function code({ info, content }) {
  const text = content.endsWith("\n") ? content.slice(0, -1) : content;
  const button = make("button", "copy", "Copy");
  button.dataset.copies = text;
  const shown = make("pre", "", make("code", "", text));
  shown.dir = "ltr";
  return make("div", "code", make("div", "code-head", make("span", "", info.trim()), button), shown);
}
