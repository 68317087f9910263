// The classes: rename, merge, add, remove, describe, and see at once what changes.

import { change, confirmBox, find, make, onState, picture, plural, state } from "./core.js";

const ROWS = 60;
let limit = ROWS;
let isOpen = false;
const checked = new Set();

const nameField = (known, use) => {
  const input = make("input", { type: "text", value: known.name, "aria-label": `Name of ${known.name}`, autocomplete: "off" });
  return make("form", {
    class: "rename",
    onsubmit: (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (name && name !== known.name) use(name); else input.value = known.name;
    },
  }, input, make("button", { type: "submit" }, "Rename"));
};

const descriptions = (known) => {
  const text = make("textarea", { rows: 3, "aria-label": `Descriptions of ${known.name}, one per line` });
  text.value = known.descriptions.join("\n");
  return make("details", {}, make("summary", {}, known.descriptions.length ? plural(known.descriptions.length, "description") : "Describe"),
    text, make("button", {
      type: "button", onclick: () => change("/api/class", { action: "describe", name: known.name, sentences: text.value.split("\n") }),
    }, "Save descriptions"));
};

const row = (known) => {
  const box = make("input", {
    type: "checkbox", checked: checked.has(known.name), "aria-label": `Merge ${known.name}`,
    onchange: () => { if (box.checked) checked.add(known.name); else checked.delete(known.name); showTools(); },
  });
  return make("article", { class: "class", "data-name": known.name },
    make("div", { class: "class-head" }, box,
      nameField(known, (name) => change("/api/class", { action: "rename", name: known.name, new: name })),
      make("span", { class: "note" }, plural(known.count, "image"))),
    make("div", { class: "pictures" }, ...known.images.map((position) => picture(position, 96))),
    make("div", { class: "buttons" }, descriptions(known),
      make("button", {
        type: "button", class: "danger",
        onclick: async () => { if (await confirmBox(`Remove the class “${known.name}”?`, "Remove it")) change("/api/class", { action: "remove", name: known.name }); },
      }, "Remove")));
};

const addForm = () => {
  const name = make("input", { type: "text", "aria-label": "Name of the new class", placeholder: "New class", autocomplete: "off" });
  const sentence = make("input", { type: "text", "aria-label": "Description of the new class (optional)", placeholder: "What it looks like (optional)", autocomplete: "off" });
  return make("form", {
    class: "picker",
    onsubmit: async (event) => {
      event.preventDefault();
      if (!name.value.trim()) return;
      const found = await change("/api/class", { action: "add", name: name.value.trim(), sentences: sentence.value.trim() ? [sentence.value] : [] });
      if (found) { name.value = ""; sentence.value = ""; }
    },
  }, name, sentence, make("button", { type: "submit" }, "Add class"));
};

const mergeForm = make("form", { class: "picker", id: "merge", hidden: true });
const filter = make("input", { type: "search", "aria-label": "Show classes whose name contains", placeholder: "Find a class", oninput: () => show() });

const showTools = () => {
  for (const name of [...checked]) if (!state.classes.some((known) => known.name === name)) checked.delete(name);
  mergeForm.hidden = checked.size < 2;
  if (mergeForm.hidden) return;
  const names = [...checked];
  const input = make("input", { type: "text", value: names[0], "aria-label": "Name of the merged class", autocomplete: "off" });
  mergeForm.replaceChildren(make("span", {}, `Merge ${names.join(", ")} into`), input, make("button", { type: "submit" }, "Merge"));
  mergeForm.onsubmit = async (event) => {
    event.preventDefault();
    if (await change("/api/class", { action: "merge", names, new: input.value.trim() })) checked.clear();
    showTools();
  };
};

const show = () => {
  const wanted = filter.value.trim().toLowerCase();
  const found = state.classes.filter((known) => known.name.toLowerCase().includes(wanted));
  const list = find("class-list");
  const editing = document.activeElement && list.contains(document.activeElement) && /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)
    && document.activeElement.type !== "checkbox" ? document.activeElement.closest(".class") : null;
  const rows = found.slice(0, limit).map((known) => (editing && editing.dataset.name === known.name ? editing : row(known)));
  if (!editing || !rows.includes(editing)) list.replaceChildren(...rows);
  else { // what somebody is typing stays where it is
    for (const other of [...list.children]) if (other !== editing) other.remove();
    const index = rows.indexOf(editing);
    editing.before(...rows.slice(0, index));
    editing.after(...rows.slice(index + 1));
  }
  find("more-classes").hidden = found.length <= limit;
  showTools();
};

find("class-tools").append(addForm(), mergeForm, filter);
find("more-classes").addEventListener("click", () => { limit += ROWS; show(); });

export const open = (visible) => {
  isOpen = visible;
  if (visible) show();
};
onState(() => { if (isOpen) show(); });
