// Rows of images that belong together: one answer names them all.

import { answer, ask, attempt, change, classPicker, ensureClass, find, make, onState, percent, picture, plural, say, state } from "./core.js";

const ROWS = 12;
const FEW = 10;
const MORE = 60;
let groups = [];
let shown = 0;
let isOpen = false;
const rows = new Map();

class Row {
  constructor(group) {
    this.group = group;
    this.marked = new Set();
    this.n_pictures = FEW;
    this.heading = make("h3");
    this.buttons = make("div", { class: "buttons" });
    this.pictures = make("div", { class: "pictures" });
    this.element = make("article", { class: "group", "data-group": String(group.number) }, this.heading, this.buttons, this.pictures);
    this.update(group);
    this.showPictures();
  }

  /** Show the current names without touching pictures or marks. */
  update(group) {
    this.group = group;
    const labeled = group.n_labeled ? `, ${group.n_labeled} labeled` : "";
    this.heading.replaceChildren(make("strong", {}, group.name),
      make("span", { class: "note" }, ` ${percent(group.share)} of ${plural(group.size, "image")}${labeled} · ${group.reason}`));
    if (this.buttons.contains(document.activeElement)) return; // nobody loses the focus
    const names = [group.name, ...group.alternatives.map(([name]) => name)];
    this.notThese = make("button", { type: "button", hidden: !this.marked.size, onclick: () => this.exclude() }, `Marked images are not ${group.name}`);
    this.buttons.replaceChildren(
      make("span", { class: "note" }, "All are"),
      ...names.map((name, i) => make("button", { type: "button", class: !i && group.share >= 0.5 ? "primary" : "", "aria-label": `All are ${name}`, onclick: () => this.name(name) }, name)),
      make("button", { type: "button", onclick: () => this.name(state.none) }, "None of these"),
      classPicker("Another class", "Name all", async (name) => { if (await ensureClass(name)) this.name(name); }),
      this.notThese);
  }

  showPictures() {
    const images = this.group.images.slice(0, this.n_pictures);
    this.pictures.replaceChildren(...images.map((position, i) => make("button", {
      type: "button", class: "mark", "aria-pressed": String(this.marked.has(position)), "aria-label": `Image ${i + 1} does not belong`,
      onclick: (event) => this.mark(position, event.currentTarget),
    }, picture(position, 96))));
    const left = this.group.images.length - images.length;
    if (left > 0) {
      this.pictures.append(make("button", { type: "button", onclick: () => { this.n_pictures += MORE; this.showPictures(); } }, `${left} more`));
    }
  }

  mark(position, button) {
    if (this.marked.has(position)) this.marked.delete(position); else this.marked.add(position);
    button.setAttribute("aria-pressed", String(this.marked.has(position)));
    this.notThese.hidden = !this.marked.size;
  }

  exclude() {
    answer("not", [...this.marked], this.group.name);
    say(`${plural(this.marked.size, "image")} marked as not ${this.group.name}.`);
    this.marked.clear();
    this.showPictures();
    this.notThese.hidden = true;
  }

  async name(label) {
    this.element.setAttribute("aria-busy", "true");
    const found = await change("/api/group", { group: this.group.number, label, others: [...this.marked] });
    this.element.removeAttribute("aria-busy");
    if (!found) return;
    const next = this.element.nextElementSibling;
    rows.delete(this.group.number);
    this.element.replaceWith(make("p", { class: "group done", tabindex: "-1" }, `${plural(this.group.size - this.marked.size, "image")}: ${label}`));
    next?.querySelector("button")?.focus();
  }
}

const more = () => {
  for (const group of groups.slice(shown, shown + ROWS)) {
    const row = new Row(group);
    rows.set(group.number, row);
    find("group-list").append(row.element);
  }
  shown = Math.min(shown + ROWS, groups.length);
  find("more-groups").hidden = shown >= groups.length;
};

const load = async () => {
  const found = await attempt(() => ask("/api/groups"));
  if (!found) return;
  if (!groups.length) {
    groups = found;
    more();
    return;
  }
  for (const group of found) rows.get(group.number)?.update(group);
};

/** Handle a key: J and K go to the next and the previous group; returns whether it was used. */
export const press = (name) => {
  const by = { j: 1, k: -1 }[name.toLowerCase()];
  if (!by) return false;
  const all = [...document.querySelectorAll("article.group")];
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const row = all[Math.min(all.length - 1, Math.max(0, at + by))];
  row?.querySelector("button")?.focus();
  row?.scrollIntoView({ block: "nearest" });
  return true;
};

export const open = (visible) => {
  isOpen = visible;
  if (visible) load();
};

/** Show all groups again, for example after an undo. */
export const reload = () => {
  groups = [];
  shown = 0;
  rows.clear();
  find("group-list").replaceChildren();
  if (isOpen) load();
};

find("more-groups").addEventListener("click", more);
onState(() => { if (isOpen) load(); });
