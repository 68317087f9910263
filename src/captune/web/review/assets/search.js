// Find images by words, like an example, or by what is known about them, and answer for the selected ones.

import { answer, ask, attempt, classPicker, ensureClass, find, make, onState, percent, picture, plural, say, state } from "./core.js";

const PAGE = 60;
const FILTERS = { unlabeled: "not labeled", changed: "changed", outliers: "outliers", duplicates: "duplicates", "none of these": "none of these", disagreed: "people disagree" };
const RANGES = { "any confidence": [0, 1], "below 50%": [0, 0.5], "below 80%": [0, 0.8], "above 95%": [0.95, 1] };
let images = [];
let total = 0;
let like = null;
let isOpen = false;
let number = 0; // of the last request: older answers are not shown
const selected = new Set();

const words = make("input", { type: "search", id: "words", "aria-label": "What the images show", placeholder: "a bridge at night", autocomplete: "off" });
const label = make("input", { type: "text", list: "class-names", "aria-label": "Only this class", placeholder: "any class", autocomplete: "off", onchange: () => search() });
const range = make("select", { "aria-label": "Confidence", onchange: () => search() }, ...Object.keys(RANGES).map((name) => make("option", {}, name)));
const boxes = Object.entries(FILTERS).map(([value, text]) => make("label", {}, make("input", { type: "checkbox", value, onchange: () => search() }), text));
const example = make("p", { id: "example", hidden: true });
const count = make("p", { id: "found-count", role: "status" });
const grid = make("div", { id: "found", class: "pictures" });
const more = make("button", { type: "button", hidden: true, onclick: () => search(images.length) }, "More images");

const query = (skip) => {
  const found = new URLSearchParams({ count: PAGE, skip });
  const [low, high] = RANGES[range.value];
  if (like !== null) found.set("like", like); else if (words.value.trim()) found.set("words", words.value.trim());
  if (label.value.trim()) found.set("label", label.value.trim());
  if (low) found.set("low", low);
  if (high < 1) found.set("high", high);
  for (const box of boxes) if (box.firstChild.checked) found.append("only", box.firstChild.value);
  return found;
};

const search = async (skip = 0) => {
  number += 1;
  const own = number;
  count.textContent = "Searching …";
  const found = await attempt(() => ask(`/api/find?${query(skip)}`));
  if (own !== number) return;
  if (!found) { count.textContent = ""; return; }
  images = skip ? [...images, ...found.images] : found.images;
  total = found.total;
  if (!skip) selected.clear();
  showExample();
  show(skip);
};

const showExample = () => {
  example.hidden = like === null;
  if (like === null) return;
  example.replaceChildren(picture(like, 96, "The example"), " Images like this one. ", make("button", { type: "button", onclick: () => { like = null; search(); } }, "Clear"));
};

const tile = (one) => {
  const toggle = make("button", {
    type: "button", class: "tile", "aria-pressed": String(selected.has(one.position)), "data-position": String(one.position),
    "aria-label": `${one.image}: ${one.label}, ${percent(one.confidence)}`, title: one.image,
    onclick: () => { if (selected.has(one.position)) selected.delete(one.position); else selected.add(one.position); toggle.setAttribute("aria-pressed", String(selected.has(one.position))); showTools(); },
  }, picture(one.position, 192), make("span", { class: "tile-name" }, make("span", { class: "name" }, one.is_labeled ? "✓ " : "", one.label), make("span", { class: "share" }, ` ${percent(one.confidence)}`)));
  return make("div", { class: "tile-box" }, toggle,
    make("button", { type: "button", class: "like", "aria-label": `More like ${one.image}`, title: "More like this", onclick: () => showLike(one.position) }, "≈"));
};

const show = (from = 0) => {
  const tiles = images.slice(from).map(tile);
  if (from) grid.append(...tiles); else grid.replaceChildren(...tiles);
  const shown = images.length < total ? `${images.length.toLocaleString("en")} of ${plural(total, "image")}` : plural(total, "image");
  const order = like !== null || words.value.trim() ? "the most similar first" : "the least confident first";
  count.textContent = total ? `${shown}, ${order}` : "No image matches.";
  more.hidden = images.length >= total;
  showTools();
};

const showTools = () => {
  tools.hidden = !images.length;
  chosen.textContent = selected.size ? `${plural(selected.size, "image")} selected` : "Select images to answer for all of them.";
  for (const part of [picker, notPicker, noneButton, clearButton]) part.hidden = !selected.size;
};

const selectAll = (on) => {
  selected.clear();
  if (on) for (const one of images) selected.add(one.position);
  for (const button of grid.querySelectorAll(".tile")) button.setAttribute("aria-pressed", String(on));
  showTools();
};

const give = (kind, name) => {
  if (!selected.size) return;
  answer(kind, [...selected], name);
  say(`${plural(selected.size, "image")}: ${kind === "not" ? "not " : ""}${name}`);
  selectAll(false);
};

const chosen = make("span", { role: "status" });
const picker = classPicker("Class of the selected images", "Label them", async (name) => { if (await ensureClass(name)) give("label", name); }, "Class");
const notPicker = classPicker("A class that they are not", "They are not", (name) => give("not", name), "Class");
const noneButton = make("button", { type: "button", "aria-keyshortcuts": "N", onclick: () => give("label", state.none) }, "None of these ", make("kbd", {}, "N"));
const clearButton = make("button", { type: "button", onclick: () => selectAll(false) }, "Clear selection");
const tools = make("div", { class: "tools", id: "search-tools", hidden: true },
  make("button", { type: "button", "aria-keyshortcuts": "A", onclick: () => selectAll(true) }, "Select all shown ", make("kbd", {}, "A")), clearButton, chosen, picker, notPicker, noneButton);

find("search-box").append(
  make("form", { id: "search-form", role: "search", onsubmit: (event) => { event.preventDefault(); like = null; search(); } }, words, make("button", { type: "submit", class: "primary" }, "Search")),
  make("fieldset", { class: "filters" }, make("legend", {}, "Only"), label, range, ...boxes), example, count, tools, grid, more);

/** Show images like one of them. */
export const showLike = (position) => { like = position; search(); };

/** Show the images that one filter lets through. */
export const showOnly = (name) => {
  like = null;
  words.value = "";
  for (const box of boxes) box.firstChild.checked = box.firstChild.value === name;
  search();
};

const step = (by) => {
  const tiles = [...grid.querySelectorAll(".tile")];
  const at = tiles.indexOf(document.activeElement);
  tiles[Math.min(tiles.length - 1, Math.max(0, at + by))]?.focus();
};

/** Handle a key; returns whether it was used. */
export const press = (name) => {
  const columns = Math.max(1, Math.round(grid.clientWidth / (grid.firstElementChild?.offsetWidth || 1)));
  const focused = document.activeElement?.dataset?.position;
  const uses = {
    a: () => selectAll(true), n: () => give("label", state.none), "/": () => words.focus(),
    l: () => { if (focused) showLike(Number(focused)); },
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => step(columns), ArrowUp: () => step(-columns),
  };
  const use = uses[name.length === 1 ? name.toLowerCase() : name];
  if (!use) return false;
  use();
  return true;
};

export const open = (visible) => {
  isOpen = visible;
  if (visible && !images.length) search();
};

// Labels that changed are shown without a new search, which would move the images under the pointer.
onState(async () => {
  if (!isOpen || !images.length) return;
  const positions = images.slice(0, 100).map((one) => one.position);
  const found = await attempt(() => ask(`/api/facts?positions=${positions.join(",")}`));
  for (const fact of found || []) {
    const one = images.find((other) => other.position === fact.position);
    const button = grid.querySelector(`[data-position="${fact.position}"]`);
    if (!one || !button) continue;
    [[one.label, one.confidence]] = fact.choices;
    one.is_labeled = fact.is_labeled;
    if (button !== document.activeElement) button.parentElement.replaceWith(tile(one));
  }
});
