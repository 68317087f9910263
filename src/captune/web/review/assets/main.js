// The head of the page, its keys, and which part is shown.

import { ask, attempt, find, follow, make, onState, percent, plural, refresh, say, sendLeftovers, state, undo } from "./core.js";
import * as classes from "./classes.js";
import * as compare from "./compare.js";
import * as groups from "./groups.js";
import * as map from "./map.js";
import * as suggestions from "./suggestions.js";

const pages = { suggestions, groups, classes, map, compare };

const current = () => (location.hash.slice(1) in pages ? location.hash.slice(1) : "suggestions");

const showPage = () => {
  const name = current();
  for (const [other, page] of Object.entries(pages)) {
    find(other).hidden = other !== name;
    page.open(other === name);
  }
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
};

const undoLast = async () => {
  const undone = await undo();
  if (!undone) return;
  say(`Undone: ${{ label: "labeled as", not: "not", skip: "skipped", rename: "renamed to", merge: "merged into", add: "added", remove: "removed", describe: "described" }[undone.kind]} ${undone.label || ""}`);
  if (current() === "suggestions") suggestions.bringBack(undone);
  if (current() === "groups") groups.reload();
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target;
  const isTyping = target.closest("textarea, input:not([type=radio]):not([type=checkbox])");
  if (event.key === "Escape" && isTyping) { target.blur(); return; }
  if (isTyping) return;
  if (event.key.toLowerCase() === "u") { event.preventDefault(); undoLast(); return; }
  const isButton = target.closest("button, a, summary, input");
  if (current() === "suggestions" && !(isButton && event.key === "Enter") && suggestions.press(event.key)) event.preventDefault();
});

find("undo").addEventListener("click", undoLast);

/** Download an export, telling when it takes a while and why it fails. */
const download = (format) => attempt(async () => {
  say("Exporting …");
  const { address, name } = await ask("/api/export", { format }).finally(() => say(""));
  make("a", { href: address, download: name }).click();
  say(`Exported ${name}.`);
});
for (const button of document.querySelectorAll("#exports [data-format]")) {
  button.addEventListener("click", () => { find("exports").open = false; download(button.dataset.format); });
}
document.addEventListener("click", (event) => { if (!find("exports").contains(event.target)) find("exports").open = false; });

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
const nameTheme = () => { find("theme").textContent = theme() === "dark" ? "Light theme" : "Dark theme"; map.redraw(); };
root.dataset.theme = localStorage.getItem("captune-theme") || "";
if (!root.dataset.theme) delete root.dataset.theme;
find("theme").addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  localStorage.setItem("captune-theme", root.dataset.theme);
  nameTheme();
});
dark.addEventListener("change", nameTheme);

const FEWEST_CHECKS = 10; // below this only the interval is shown

const accuracy = () => {
  if (!state.estimate) return "Accuracy is not known yet: every fifth suggestion is a random image.";
  const { accuracy: share, low, high, n_checks: count } = state.estimate;
  const [least, most] = [low, high].map((end) => (100 * end).toFixed(0));
  const range = count < FEWEST_CHECKS ? `between ${least} and ${most}%` : `${percent(share)} (${least} to ${most}%)`;
  return `Accuracy: ${range}, from ${plural(count, "checked image")}.`;
};

let lastVersion = -1;
onState(() => {
  find("title").textContent = `captune: ${state.title}`;
  document.title = `captune: ${state.title}`;
  find("progress").textContent = `${plural(state.n_answers, "answer")} for ${plural(state.n_images, "image")}. ${accuracy()}`;
  find("class-names").replaceChildren(...state.classes.map((known) => make("option", { value: known.name })));
  if (state.problem) say(state.problem);
  else if (lastVersion >= 0 && state.version > lastVersion && state.change) say([state.change.sentence, ...state.change.notes].join(" "));
  lastVersion = state.version;
});

addEventListener("hashchange", () => { showPage(); find("main").focus(); });
nameTheme();
await refresh();
sendLeftovers();
showPage();
follow();
