// What changed: from which class to which, with pictures.

import { ask, attempt, find, make, onState, picture, plural, state } from "./core.js";

const FEW = 16;
const MOST_PAIRS = 60;
let since = "last";
let isOpen = false;

const option = (value, text) => {
  const input = make("input", { type: "radio", name: "since", value, checked: value === since, onchange: () => { since = value; load(); } });
  return make("label", {}, input, text);
};
const list = make("div", { id: "moves" });

const pair = (move) => {
  const pictures = make("div", { class: "pictures" }, ...move.images.slice(0, FEW).map((position) => picture(position, 96)));
  const left = move.images.length - FEW;
  if (left > 0) pictures.append(make("span", { class: "note" }, `and ${plural(left, "more image")}`));
  return make("article", { class: "move" },
    make("h3", {}, move.old, make("span", { class: "arrow", "aria-label": "became" }, " → "), move.new, make("span", { class: "note" }, ` ${plural(move.images.length, "image")}`)),
    pictures);
};

const load = async () => {
  const found = await attempt(() => ask(`/api/moves?since=${since}`));
  if (!found) return;
  const total = found.reduce((sum, move) => sum + move.images.length, 0);
  const head = make("p", {}, total ? `${plural(total, "image")} of ${state.n_images.toLocaleString("en")} changed their class.` : "No image changed its class.");
  const rest = found.length > MOST_PAIRS ? [make("p", { class: "note" }, `${found.length - MOST_PAIRS} more pairs of classes are not shown.`)] : [];
  list.replaceChildren(head, make("div", { class: "cards" }, ...found.slice(0, MOST_PAIRS).map(pair)), ...rest);
};

find("compare-box").append(make("fieldset", {}, make("legend", {}, "Changes"),
  option("last", "since the last adaptation"), option("start", "since the page was started")), list);

export const open = (visible) => {
  isOpen = visible;
  if (visible) load();
};
onState(() => { if (isOpen) load(); });
