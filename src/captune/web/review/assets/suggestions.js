// One image at a time, large, with the current name and the next best.

import { answer, ask, attempt, classPicker, ensureClass, find, make, onState, percent, picture, say, state, windowId } from "./core.js";

const queue = [];
const done = new Set();
let isFetching = false;
let isOpen = false;

const fetchMore = async () => {
  if (isFetching) return;
  isFetching = true;
  const found = await attempt(() => ask("/api/suggestions", { window: windowId, count: 20 }));
  isFetching = false;
  const known = new Set(queue.map((look) => look.position));
  const fresh = (found || []).filter((look) => !done.has(look.position) && !known.has(look.position));
  const wasEmpty = !queue.length;
  queue.push(...fresh);
  if (wasEmpty || !fresh.length) show();
};

const updateChoices = async () => {
  if (!queue.length) return;
  const found = await attempt(() => ask(`/api/facts?positions=${queue.map((look) => look.position).join(",")}`));
  if (!found) return;
  const facts = new Map(found.map((one) => [one.position, one]));
  for (let i = queue.length - 1; i >= 0; i -= 1) {
    const fact = facts.get(queue[i].position);
    if (!fact) continue;
    if (fact.is_labeled && i > 0) queue.splice(i, 1); // somebody else was faster
    else queue[i].choices = fact.choices;
  }
  if (isOpen) showChoices();
};

const next = () => {
  done.add(queue.shift().position);
  if (queue.length < 6) fetchMore();
  show();
};

const choose = (name) => {
  const look = queue[0];
  if (!look) return;
  answer("label", [look.position], name, look.kind);
  say(`${look.image}: ${name}`);
  next();
};

const skip = () => {
  const look = queue[0];
  if (!look) return;
  answer("skip", [look.position], "", look.kind);
  say(`${look.image}: skipped`);
  next();
};

const chooseOther = async (name) => { if (await ensureClass(name)) choose(name); };

/** Show an image again whose answer was taken back. */
export const bringBack = (taken) => {
  if (!taken || !taken.images || taken.images.length !== 1 || !["label", "skip"].includes(taken.kind)) return;
  const [position] = taken.images;
  done.delete(position);
  attempt(() => ask(`/api/facts?positions=${position}`)).then((found) => {
    if (!found) return;
    const index = queue.findIndex((look) => look.position === position);
    if (index >= 0) queue.splice(index, 1);
    queue.unshift({ ...found[0], kind: taken.suggestion || "", reason: "taken back" });
    show();
  });
};

const showChoices = () => {
  const list = find("choices");
  const look = queue[0];
  if (!list || !look) return;
  const hadFocus = list.contains(document.activeElement) ? document.activeElement.dataset.key : "";
  list.replaceChildren(...look.choices.map(([name, share], i) => make("li", {}, make("button", {
    type: "button", class: i ? "choice" : "choice best", "data-key": String(i + 1), "aria-keyshortcuts": String(i + 1),
    onclick: () => choose(name),
  }, make("kbd", {}, String(i + 1)), make("span", { class: "name" }, name), make("span", { class: "share" }, percent(share))))));
  find("current-name").textContent = look.choices[0][0];
  if (hadFocus) list.querySelector(`[data-key="${hadFocus}"]`)?.focus();
};

const show = () => {
  const box = find("suggestion");
  const look = queue[0];
  if (!look) {
    box.replaceChildren(make("p", { class: "empty" }, isFetching || state.version < 0 ? "Looking for images …" : "No images are left to look at. Check the groups or the map, or export the labels."));
    return;
  }
  const large = state.has_pictures
    ? make("img", { id: "large", alt: `Image ${look.image}`, src: `/image/${look.position}/1024` })
    : make("p", { id: "large", class: "no-picture" }, look.image);
  large.addEventListener("error", () => large.replaceWith(make("p", { id: "large", class: "no-picture" }, "This image cannot be shown.")));
  box.replaceChildren(
    make("div", { class: "stage" }, large, make("p", { class: "note" }, `${look.image}: ${look.reason}`)),
    make("div", { class: "answers" },
      make("p", { class: "question" }, "Is it ", make("strong", { id: "current-name" }), "?"),
      make("div", { class: "buttons" },
        make("button", { type: "button", class: "primary", "aria-keyshortcuts": "Enter", onclick: () => choose(queue[0].choices[0][0]) }, "Yes ", make("kbd", {}, "Enter")),
        make("button", { type: "button", "aria-keyshortcuts": "S", onclick: skip }, "Skip ", make("kbd", {}, "S"))),
      make("ol", { id: "choices", "aria-label": "Classes" }),
      classPicker("Another class", "Use it", chooseOther)));
  showChoices();
  for (const later of queue.slice(1, 3)) if (state.has_pictures) new Image().src = `/image/${later.position}/1024`;
};

/** Handle a key; returns whether it was used. */
export const press = (key) => {
  if (!queue.length) return false;
  if (key === "Enter") choose(queue[0].choices[0][0]);
  else if (key.toLowerCase() === "s") skip();
  else if (/^[1-9]$/.test(key) && queue[0].choices[key - 1]) choose(queue[0].choices[key - 1][0]);
  else if (key === "/") document.querySelector("#suggestion .picker input").focus();
  else return false;
  return true;
};

export const open = (visible) => {
  isOpen = visible;
  if (visible && !queue.length) { show(); fetchMore(); }
};

onState(() => {
  if (!isOpen) return;
  updateChoices();
  if (queue.length < 6) fetchMore();
});
