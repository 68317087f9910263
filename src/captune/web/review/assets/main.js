// The head of the page, its keys, and which part is shown.

import { allSaved, ask, attempt, find, follow, make, onState, percent, plural, refresh, say, sendLeftovers, state, undo } from "./core.js";
import * as classes from "./classes.js";
import * as compare from "./compare.js";
import { drawCurve } from "./curve.js";
import * as groups from "./groups.js";
import * as map from "./map.js";
import * as search from "./search.js";
import * as suggestions from "./suggestions.js";

const pages = { suggestions, search, groups, classes, map, compare };
const LETTERS = { r: "suggestions", f: "search", g: "groups", c: "classes", m: "map", v: "compare" };
const KEYS = {
  Everywhere: { "R F G C M V": "suggestions, search, groups, classes, map, compare", U: "undo", "?": "these keys", Esc: "leave a field" },
  Suggestions: { Enter: "the current name is right", "1 to 9": "it is this class", X: "not the current name", N: "none of these classes", S: "skip", L: "more like this", "/": "type another class" },
  Search: { "/": "type words", "Arrow keys": "go to an image", Space: "select it", A: "select all shown", N: "none of these, for the selected", L: "more like this" },
  Groups: { "J K": "next and previous group", Enter: "press the button" },
  Map: { "Arrow keys": "go to an image", Space: "select it", "+ −": "zoom" },
};

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
  const whose = undone.person && undone.person !== (find("person").value.trim() || state.person) ? ` (an answer of ${undone.person})` : "";
  say(`Undone${whose}: ${{ label: "labeled as", not: "not", skip: "skipped", rename: "renamed to", merge: "merged into", add: "added", remove: "removed", describe: "described" }[undone.kind]} ${undone.label || ""}`);
  if (current() === "suggestions") suggestions.bringBack(undone);
  if (current() === "groups") groups.reload();
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target;
  const isTyping = target.closest("textarea, select, input:not([type=radio]):not([type=checkbox])");
  if (event.key === "Escape" && isTyping) { target.blur(); return; }
  if (isTyping) return;
  if (document.querySelector("dialog[open]")) return;
  const name = event.key.toLowerCase();
  const isButton = target.closest("button, a, summary, input, select");
  if (event.key === "?") find("help").showModal();
  else if (name === "u") undoLast();
  else if (name in LETTERS) location.hash = LETTERS[name];
  else if ((isButton && ["Enter", " "].includes(event.key)) || !pages[current()].press?.(event.key)) return;
  event.preventDefault();
});

find("undo").addEventListener("click", undoLast);
find("help-button").addEventListener("click", () => find("help").showModal());
find("help-keys").append(...Object.entries(KEYS).map(([where, keys]) => make("section", {}, make("h3", {}, where),
  make("dl", {}, ...Object.entries(keys).flatMap(([name, use]) => [make("dt", {}, make("kbd", {}, name)), make("dd", {}, use)])))));
find("person").value = localStorage.getItem("captune-person") || "";
find("person").addEventListener("change", () => localStorage.setItem("captune-person", find("person").value.trim()));
addEventListener("find-like", ({ detail }) => { location.hash = "search"; search.showLike(detail); });

find("accept").addEventListener("click", () => find("accepted").showModal());
find("accept-form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    await allSaved();
    const found = await ask("/api/accept", { precision: find("precision").value / 100 });
    const left = found.n_missing || found.n_more;
    find("export-accepted").hidden = !found.n_accepted;
    find("export-accepted").querySelector("code").textContent = `captune export ${state.title} --format imagefolder --precision ${found.precision} --out dataset`;
    find("check").hidden = !left;
    find("check").textContent = `Check ${plural(left, "image")}`;
    find("check").onclick = () => { find("accepted").close(); location.hash = "suggestions"; suggestions.startChecks(found.precision, left); };
    find("accept-note").textContent = found.sentence;
    find("curve").replaceChildren(drawCurve(found));
    find("curve-note").hidden = false;
    const cells = (tag, ...texts) => make("tr", {}, ...texts.map((text) => make(tag, {}, String(text))));
    find("zones").replaceChildren(...(found.zones.length ? [make("table", {}, make("thead", {}, cells("th", "Most confident images", "Checked", "Wrong")),
      make("tbody", {}, ...found.zones.map(([images, checks, wrong]) => cells("td", images.toLocaleString("en"), checks, wrong))))] : []));
  });
});

const showArrived = () => {
  find("arrived").hidden = !state.n_new_images;
  find("arrived").replaceChildren(`${plural(state.n_new_images, "new image")} in the folder. `, make("button", { type: "button", onclick: async (event) => {
    event.target.disabled = true;
    const found = await attempt(() => ask("/api/update", {}));
    if (found) { sessionStorage.setItem("captune-news", found.sentence); location.reload(); }
  } }, "Add them"));
};

/** Download an export, telling when it takes a while and why it fails. */
const download = (format) => attempt(async () => {
  say("Exporting …");
  const response = await ask("/api/export", { format }).finally(() => say(""));
  const name = decodeURIComponent(response.headers.get("Content-Disposition").split("''")[1]);
  const address = URL.createObjectURL(await response.blob());
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
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

const showDisagreement = () => {
  if (!state.n_disagreed) return;
  find("progress").append(make("button", { type: "button", id: "disagreed", onclick: () => { location.hash = "search"; search.showOnly("disagreed"); } },
    `${plural(state.n_disagreed, "image")} with two opinions`));
};

/** Tell what the next suggestions are worth; the trial takes as long as an adaptation. */
const showWorth = () => attempt(async () => {
  say("Trying out the next 20 answers …");
  say((await ask("/api/worth", { count: 20 })).sentence.replace("These", "The next 20"));
});

let lastVersion = -1;
onState(() => {
  find("title").textContent = `captune: ${state.title}`;
  document.title = `captune: ${state.title}`;
  find("progress").textContent = `${plural(state.n_answers, "answer")} for ${plural(state.n_images, "image")}. ${accuracy()}`;
  find("saved").textContent = state.is_saved ? "Everything is saved." : "Answers are saved; predictions and report follow within a minute.";
  if (state.n_answers) find("progress").append(make("button", { type: "button", id: "worth", onclick: showWorth }, "Are more answers worth it?"));
  showDisagreement();
  showArrived();
  find("class-names").replaceChildren(...state.classes.map((known) => make("option", { value: known.name })));
  if (state.problem) say(state.problem);
  else if (lastVersion >= 0 && state.version > lastVersion && state.change) say([state.change.sentence, ...state.change.notes].join(" "));
  lastVersion = state.version;
});

addEventListener("hashchange", () => { showPage(); find("main").focus(); });
nameTheme();
await refresh();
say(sessionStorage.getItem("captune-news") || "");
sessionStorage.removeItem("captune-news");
sendLeftovers();
showPage();
follow();
