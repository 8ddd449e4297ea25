// Text of others that a person can check: invisible characters, and characters that look like others, are marked. Nothing is omitted. The
// terminal does the same with `mew_board.visible`.

import { make, paragraphs } from "./dom.js";
import LOOK_ALIKES from "./look_alikes.json" with { type: "json" };

// Runs of blanks, invisible characters, words, and the rest: each character is in one run, so the time is linear.
const RUNS = /[ \t]+|[[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Z}\p{DI}\u2800]--[ \t\n]]+|[[\p{L}\p{M}\p{N}_]--\p{DI}]+|[\s\S]/gv;
const UNSEEN = /^[[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Z}\p{DI}\u2800]--[ \t\n]]/v;
const PLAIN = /^[\x20-\x7e\n]*$/;
const ASCII = /^[\0-\x7f]*$/;
const ASCII_LETTER = /[A-Za-z]/;
const LETTER = /^\p{L}/u;
const MARK = /^\p{M}/u;
const LATIN = /^\p{Script=Latin}/u;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
// Letters that look like ASCII letters: of other scripts, then Latin ones.
const ALIKE = new RegExp(`^[${LOOK_ALIKES.letters}${LOOK_ALIKES.scripts.map((one) => `\\p{Script=${one}}`).join("")}]`, "u");
const ALIKE_LATIN = new RegExp(`^[${LOOK_ALIKES.latin}]`, "u");
const ALIKE_SIGN = new RegExp(`^[${LOOK_ALIKES.signs}]`, "u");
const MOST_BLANKS = 8; // more blanks between two words are marked
const MOST_INDENT = 80;
const MOST_MARKS = 2; // on one letter, as in Vietnamese
const MOST_BOXES = 1_000; // browsers need more than linear time for many; further ones become text, as in the terminal
const MOST_WORD = 1_000; // the same holds for words from right to left

const number = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

const mark = (words, title, kind, codes = words) => ({ words, title, kind, codes });

/** Whether a piece continues the one before it: neighbours are one mark, and one word. */
function joins(before, piece) {
  if (piece.rtl) return before?.rtl !== undefined && before.rtl.length < MOST_WORD;
  return before?.kind === piece.kind && piece.kind !== "blank";
}

/**
 * The pieces of a text: strings, {words, codes, title, kind} for what is marked, and {rtl} for words from right to left.
 * `codes` are the numbers of the characters. [pure]
 */
export function visiblePieces(text) {
  if (PLAIN.test(text) && !text.includes("  ") && !text.includes(" \n") && !text.endsWith(" ")) return text ? [text] : [];
  const pieces = [];
  let plain = "";
  const add = (piece) => {
    if (typeof piece === "string") return void (plain += piece);
    if (plain) pieces.push(plain);
    const before = plain ? undefined : pieces.at(-1);
    plain = "";
    if (!joins(before, piece)) pieces.push({ ...piece });
    else if (piece.rtl) before.rtl += piece.rtl;
    else for (const key of ["words", "codes"]) before[key] += `${key === "codes" || piece.kind === "unseen" ? " " : ""}${piece[key]}`;
  };
  for (const { 0: run, index } of text.matchAll(RUNS)) {
    if (run[0] === " " || run[0] === "\t") add(blanks(run, text[index - 1], text[index + run.length]));
    else if (UNSEEN.test(run)) add(unseen(run));
    else if (ASCII.test(run)) add(run);
    else word(run, add);
  }
  if (plain) pieces.push(plain);
  return pieces;
}

const endsLine = (character) => character === undefined || character === "\n" || character === "\r";

/** Blanks are shown where they end a line, or are so many that they push the rest out of sight. */
function blanks(run, before, after) {
  const isEnd = endsLine(after);
  if (!isEnd && run.length <= (endsLine(before) ? MOST_INDENT : MOST_BLANKS)) return run;
  const glyphs = run.length <= MOST_BLANKS ? run.replaceAll(" ", "·").replaceAll("\t", "→") : `${run.includes("\t") ? "→" : "·"}×${run.length}`;
  return mark(glyphs, `${run.length} ${run.length === 1 ? "blank" : "blanks"}${isEnd ? " at the end of the line" : ""}`, "blank");
}

/** The same character many times is one number and a count. */
function unseen(run) {
  const codes = [];
  for (const character of run) {
    const code = number(character);
    if (codes.at(-1)?.code === code) codes.at(-1).count += 1;
    else codes.push({ code, count: 1 });
  }
  return mark(codes.map(({ code, count }) => (count > 1 ? `${code}×${count}` : code)).join(" "), "cannot be seen, or changes how the rest looks", "unseen");
}

function word(run, add) {
  const characters = [...run];
  const letters = characters.filter((one) => LETTER.test(one));
  const isMixed = ASCII_LETTER.test(run);
  const isAlike = letters.length > 0 && letters.every((one) => ALIKE.test(one) || ALIKE_LATIN.test(one));
  let marks = MOST_MARKS; // a mark without a letter before it does not fit
  for (const one of characters) {
    marks = MARK.test(one) ? marks + 1 : 0;
    if (marks > MOST_MARKS) add(mark(number(one), "changes the character before it", "unseen"));
    else if (isLookAlike(one, isMixed, isAlike)) add(mark(one, "not what it looks like", LETTER.test(one) ? "alike" : "alike-sign", number(one)));
    else add(RIGHT_TO_LEFT.test(one) ? { rtl: one } : one);
  }
}

function isLookAlike(one, isMixed, isAlike) {
  if (ASCII.test(one)) return false;
  if (ALIKE_LATIN.test(one) || ALIKE_SIGN.test(one)) return true;
  const usual = one.normalize("NFKC");
  if (usual.length === 1 && ASCII.test(usual)) return true;
  return (isAlike && ALIKE.test(one)) || (isMixed && LETTER.test(one) && !LATIN.test(one));
}

/** A node of a text with everything in it visible. `room.boxes` is how many marks may still have a box of their own. */
export function visible(text, room = { boxes: MOST_BOXES }) {
  room.boxes ??= MOST_BOXES;
  const node = document.createDocumentFragment();
  let plain = "";
  for (const piece of visiblePieces(text)) {
    if (typeof piece === "string") plain += piece;
    else if (room.boxes <= 0) plain += piece.rtl ? `\u2068${piece.rtl}\u2069` : `${piece.kind.startsWith("alike") ? piece.words : ""}<${piece.codes}>`;
    else {
      room.boxes -= 1;
      node.append(paragraphs(plain), pieceNode(piece));
      plain = "";
    }
  }
  node.append(paragraphs(plain));
  return node;
}

function pieceNode({ rtl, words, codes, title, kind }) {
  if (rtl) return make("bdi", rtl.length < MOST_WORD ? "" : "paragraph", rtl); // keeps the order of the text around it
  const node = make("span", `odd odd-${kind}`, words);
  node.title = kind.startsWith("alike") ? `${codes}: ${title}` : title;
  if (kind === "alike") node.dataset.code = codes;
  return node;
}
