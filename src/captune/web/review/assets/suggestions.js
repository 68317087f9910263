// One image at a time, large, with the current name and the next best.

import { answer, ask, attempt, classPicker, ensureClass, find, findLike, make, onState, percent, plural, say, state, windowId } from "./core.js";

const AHEAD = 20; // suggestions that are there before an answer is given
const CHECK = "precision"; // the kind of suggestion that certifies a precision
const queue = [];
const done = new Set();
let isFetching = false;
let isOpen = false;
let checks = { precision: 0, left: 0 }; // random images that certify labels of this precision, until all are answered
const oneDecimal = (share) => `${Number((100 * share).toFixed(1))}%`;
const isChecked = () => checks.precision > 0 && !checks.left;

const fetchMore = async () => {
  if (isFetching || isChecked()) return;
  isFetching = true;
  const { precision } = checks;
  const found = await attempt(() => ask("/api/suggestions", { window: windowId, count: AHEAD, precision }));
  isFetching = false;
  if (precision !== checks.precision || isChecked()) { fetchMore(); return; }
  const known = new Set(queue.map((one) => one.position));
  const fresh = (found || []).filter((one) => !done.has(one.position) && !known.has(one.position));
  const wasEmpty = !queue.length;
  queue.push(...fresh);
  if (wasEmpty || !fresh.length) show();
};

const updateChoices = async () => {
  if (!queue.length) return;
  const found = await attempt(() => ask(`/api/facts?positions=${queue.map((one) => one.position).join(",")}`));
  if (!found) return;
  const facts = new Map(found.map((one) => [one.position, one]));
  const names = new Set([state.none, ...state.classes.map((known) => known.name)]);
  for (let i = queue.length - 1; i >= 0; i -= 1) {
    const fact = facts.get(queue[i].position);
    if (!fact || (!i && queue[0].choices.every(([name]) => names.has(name)))) continue; // nothing moves under a finger
    if (fact.is_labeled && i > 0 && queue[i].kind !== "second opinion") queue.splice(i, 1); // somebody else was faster
    else queue[i].choices = fact.choices;
  }
  if (isOpen) showChoices();
};

const next = () => {
  const one = queue.shift();
  done.add(one.position);
  if (one.kind === CHECK && checks.left) checks.left -= 1;
  if (queue.length < AHEAD / 2) fetchMore();
  show();
};

/** Ask for checks of a precision, or for the most useful images again without one. */
export const startChecks = (precision = 0, left = 0) => {
  checks = { precision, left };
  queue.length = 0;
  if (precision) done.clear(); // an image may have been shown for another reason
  show();
  fetchMore();
};

const showChecked = () => {
  const { precision } = checks;
  queue.length = 0;
  const accepted = make("button", { type: "button", class: "primary", onclick: () => { startChecks(); find("accept").click(); find("accept-form").requestSubmit(); } }, "Show what is certified");
  find("suggestion").replaceChildren(make("div", {}, make("p", { class: "question" }, `These were all checks for ${oneDecimal(precision)}.`),
    make("div", { class: "buttons" }, accepted, make("button", { type: "button", onclick: () => startChecks() }, "More suggestions"))));
  accepted.focus();
};

/** Save an answer about the image that is shown, and show the next one. */
const give = (kind, label, words) => {
  const one = queue[0];
  if (!one) return;
  answer(kind, [one.position], label, one.kind);
  say(`${one.image}: ${words}`);
  next();
};
const choose = (name) => give("label", name, name);
const skip = () => give("skip", "", "skipped");
const none = () => give("label", state.none, state.none);
const notThis = () => { if (queue.length && queue[0].kind !== CHECK) give("not", queue[0].choices[0][0], `not ${queue[0].choices[0][0]}`); };
const chooseOther = async (name) => { if (await ensureClass(name)) choose(name); };

/** Show an image again whose answer was undone. */
export const bringBack = (undone) => {
  if (!undone || !undone.images || undone.images.length !== 1 || !["label", "skip", "not"].includes(undone.kind)) return;
  const [position] = undone.images;
  if (undone.suggestion === CHECK && checks.precision) checks.left += 1;
  done.delete(position);
  attempt(() => ask(`/api/facts?positions=${position}`)).then((found) => {
    if (!found) return;
    const index = queue.findIndex((one) => one.position === position);
    if (index >= 0) queue.splice(index, 1);
    queue.unshift({ ...found[0], kind: undone.suggestion || "", reason: "answer undone" });
    show();
  });
};

const showChoices = () => {
  const list = find("choices");
  const one = queue[0];
  if (!list || !one) return;
  const hadFocus = list.contains(document.activeElement) ? document.activeElement.dataset.key : "";
  list.replaceChildren(...one.choices.map(([name, share], i) => make("li", {}, make("button", {
    type: "button", class: i ? "choice" : "choice best", "data-key": String(i + 1), "aria-keyshortcuts": String(i + 1),
    onclick: () => choose(name),
  }, make("kbd", {}, String(i + 1)), make("span", { class: "name" }, name), make("span", { class: "share" }, percent(share))))));
  find("current-name").textContent = one.choices[0][0];
  if (hadFocus) list.querySelector(`[data-key="${hadFocus}"]`)?.focus();
};

const key = (name, text, use, kind = "") => make("button", { type: "button", class: kind, "aria-keyshortcuts": name, onclick: use }, `${text} `, make("kbd", {}, name));

const show = () => {
  const box = find("suggestion");
  const one = queue[0];
  if (isChecked()) { showChecked(); return; }
  if (!one) {
    box.replaceChildren(make("p", { class: "empty" }, isFetching || state.version < 0 ? "Choosing images …" : "No images are left to answer. Check the groups or the map, or export the labels."));
    return;
  }
  const large = state.has_pictures
    ? make("img", { id: "large", alt: `Image ${one.image}`, src: `/image/${one.position}/1024` })
    : make("p", { id: "large", class: "no-picture" }, one.image);
  large.addEventListener("error", () => large.replaceWith(make("p", { id: "large", class: "no-picture" }, "This image cannot be shown.")));
  box.replaceChildren(
    make("div", { class: "stage" }, large, make("p", { class: "note" }, `${one.image}: ${one.reason}`)),
    make("div", { class: "answers" },
      ...(checks.left ? [make("p", { id: "checking" }, `${plural(checks.left, "check")} left to certify ${oneDecimal(checks.precision)}. `, make("button", { type: "button", onclick: () => startChecks() }, "Stop"))] : []),
      make("p", { class: "question" }, "Is it ", make("strong", { id: "current-name" }), "?"),
      make("div", { class: "buttons" },
        key("Enter", "Yes", () => choose(queue[0].choices[0][0]), "primary"),
        ...(one.kind === CHECK ? [] : [key("X", "No, something else", notThis)]), // a check must say what it is
        key("N", "None of these", none),
        key("S", "Skip", skip),
        key("L", "More like this", () => findLike(queue[0].position))),
      make("ol", { id: "choices", "aria-label": "Classes" }),
      classPicker("Another class", "Use it", chooseOther)));
  showChoices();
  for (const later of queue.slice(1, 4)) if (state.has_pictures) new Image().src = `/image/${later.position}/1024`;
};

/** Handle a key; returns whether it was used. */
export const press = (name) => {
  if (!queue.length) return false;
  const uses = { Enter: () => choose(queue[0].choices[0][0]), s: skip, n: none, x: notThis, l: () => findLike(queue[0].position), "/": () => document.querySelector("#suggestion .picker input").focus() };
  const use = uses[name.length === 1 ? name.toLowerCase() : name];
  if (use) use();
  else if (/^[1-9]$/.test(name) && queue[0].choices[name - 1]) choose(queue[0].choices[name - 1][0]);
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
  if (queue.length < AHEAD / 2) fetchMore();
});
