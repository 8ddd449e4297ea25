// Settings of the user in this browser: the theme, and desktop notifications (off by default).

import WORDS from "./words.json" with { type: "json" };
import { byId, setText } from "./dom.js";
import { store, stored } from "./session.js";

const THEMES = ["auto", "light", "dark"];

/** Wire the buttons, and apply what was chosen before. */
export function start() {
  applyTheme(THEMES.includes(read("theme")) ? read("theme") : "auto");
  byId("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    write("theme", next);
    applyTheme(next);
  });
  const isPossible = "Notification" in window;
  byId("notify").hidden = !isPossible;
  if (!isPossible) return;
  showNotify();
  byId("notify").addEventListener("click", async () => {
    const isOn = read("notify") === "on";
    const isAllowed = isOn || (await Notification.requestPermission()) === "granted";
    write("notify", !isOn && isAllowed ? "on" : "off");
    showNotify();
    if (!isAllowed) byId("notify").title = "The browser blocks notifications from this page.";
  });
}

/** Several items in one line. */
export const inOne = (items) => `${items.length} things need you`;

/** Notify the user of new items, unless the page is in view. */
export function notify(items) {
  if (!("Notification" in window) || read("notify") !== "on" || document.hasFocus() || Notification.permission !== "granted") return;
  const [first] = items;
  const title = items.length === 1 ? `${first.participant ?? "mew"}: ${WORDS.attention[first.kind]}` : inOne(items);
  try {
    const note = new Notification(title, { body: items.map((item) => item.reason).slice(0, 3).join("\n"), tag: "mew" });
    note.onclick = () => window.focus();
  } catch {
    // Browsers of phones let only service workers notify.
  }
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme"), `Theme: ${theme}`);
}

function showNotify() {
  const isOn = read("notify") === "on" && Notification.permission === "granted";
  byId("notify").setAttribute("aria-pressed", String(isOn));
  byId("notify").title = isOn ? "Notifications are on" : "Notify me when something needs me";
}

const read = (name) => stored(`mew.${name}`, "localStorage");

const write = (name, value) => store(value, `mew.${name}`, "localStorage");
