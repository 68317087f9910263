// What all pages share: the state of the session, requests, answers that are kept until they are saved, and events.

export const state = { classes: [], version: -1 };
const listeners = new Set();

/** Call `listener` after every change of the state. */
export const onState = (listener) => { listeners.add(listener); };

/** Return an element; text is always text, never HTML. */
export const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

export const find = (id) => document.getElementById(id);
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** Return a picture of an image; without one, its number is shown. */
export const picture = (position, side, alt = "") => {
  const number = make("span", { class: "no-picture" }, `image ${position}`);
  if (!state.has_pictures) return number;
  const image = make("img", { alt, loading: "lazy", decoding: "async", width: side, height: side });
  image.addEventListener("error", () => image.replaceWith(number));
  image.src = `/image/${position}/${side}`;
  return image;
};

export const say = (text) => { find("news").textContent = text; };

let troubles = 0;
export const trouble = (text) => {
  find("trouble").textContent = text;
  find("trouble").hidden = !text;
  troubles += text ? 1 : 0;
};

export class Refused extends Error {}

/** Return what a route sends, JSON or a file; with `body`, it is asked with JSON. */
export const ask = async (path, body) => {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  if (response.ok && response.headers.has("Content-Disposition")) return response;
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.error);
  return answer;
};

/** Do something with the server, telling what went wrong; returns undefined then. */
export const attempt = async (work) => {
  try {
    const found = await work();
    if (!unsent.length) trouble("");
    return found;
  } catch (error) {
    trouble(error instanceof Refused ? error.message : "The server does not answer. Is captune review still running?");
    return undefined;
  }
};

// Answers wait here until the server has written them to disk; they survive a reload of the page.

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
export const windowId = sessionStorage.getItem("captune-window") || newId();
sessionStorage.setItem("captune-window", windowId);
const PREFIX = "captune-unsent-";
const unsent = [];
const given = []; // ids of the answers of this window, for undo
let isSending = false;

const keep = () => {
  if (unsent.length) localStorage.setItem(PREFIX + windowId, JSON.stringify(unsent));
  else localStorage.removeItem(PREFIX + windowId);
};

const send = async () => {
  if (isSending) return;
  isSending = true;
  while (unsent.length) {
    try {
      await ask("/api/answer", unsent[0]);
      unsent.shift();
      keep();
      if (!unsent.length && troubles) trouble("");
    } catch (error) {
      if (error instanceof Refused) {
        trouble(`Not saved: ${error.message}`);
        unsent.shift();
        keep();
        continue;
      }
      trouble(`The server does not answer. ${plural(unsent.length, "answer")} will be saved when it is back.`);
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }
  isSending = false;
};

/** Save that images are of a class (`label`), are not of it (`not`) or cannot be named (`skip`). */
export const answer = (kind, images, label = "", suggestion = "") => {
  const entry = { kind, images, label, suggestion, id: newId(), person: localStorage.getItem("captune-person") || "" };
  unsent.push(entry);
  given.push(entry.id);
  keep();
  send();
  return entry.id;
};

/** Wait until the server has written all answers. */
export const allSaved = async () => { while (unsent.length) await new Promise((done) => { setTimeout(done, 50); }); };

/** Send what an earlier window could not send. */
export const sendLeftovers = () => {
  for (let i = localStorage.length - 1; i >= 0; i -= 1) {
    const key = localStorage.key(i);
    if (!key.startsWith(PREFIX)) continue;
    const left = JSON.parse(localStorage.getItem(key));
    localStorage.removeItem(key);
    unsent.push(...left.filter((entry) => !unsent.some((other) => other.id === entry.id)));
  }
  keep();
  send();
};

/** Undo the last answer of this window, or else the last one of this person; returns it. */
export const undo = () => attempt(async () => {
  if (unsent.length > 1 || (unsent.length && !isSending)) {
    const last = unsent.pop();
    given.pop();
    keep();
    return last;
  }
  return ask("/api/undo", { id: given.pop() || "" });
});

export const forgetAnswers = () => { given.length = 0; };

/** Change classes or groups and tell what changed. */
export const change = async (path, body) => {
  const found = await attempt(() => ask(path, body));
  if (found) {
    forgetAnswers(); // an undo now means this change
    say([found.sentence, ...found.notes].join(" "));
    await refresh();
  }
  return found;
};

/** Read the state again and tell all pages. */
export const refresh = async () => {
  const found = await attempt(() => ask("/api/state"));
  if (!found) return;
  Object.assign(state, found);
  for (const listener of listeners) listener(state);
};

/** Follow the session: every change of any window arrives here. */
export const follow = () => {
  let last = "";
  const events = new EventSource("/events");
  events.onmessage = ({ data }) => {
    const { version, is_busy: isBusy, map, is_saved: isSaved, n_new_images: nNew } = JSON.parse(data);
    find("busy").textContent = isBusy ? "Adapting …" : "";
    const key = `${version} ${map} ${isSaved} ${nNew}`;
    if (key === last) return;
    last = key;
    refresh();
  };
  events.onerror = () => { last = ""; };
};

/** Return an input for a class name with a button; `use` is called with the name. */
export const classPicker = (label, button, use, hint = label) => {
  const input = make("input", { type: "text", list: "class-names", "aria-label": label, placeholder: hint, autocomplete: "off" });
  return make("form", {
    class: "picker",
    onsubmit: (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (name) { input.value = ""; use(name); }
    },
  }, input, make("button", { type: "submit" }, button));
};

/** Ask a question in a box of the page; returns whether the person agrees. */
export const confirmBox = (question, yes) => new Promise((done) => {
  const box = make("dialog", { class: "question-box", "aria-label": question }, make("p", {}, question),
    make("form", { method: "dialog", class: "buttons" },
      make("button", { value: "yes", class: "primary" }, yes), make("button", { value: "" }, "Cancel")));
  box.addEventListener("close", () => { box.remove(); done(box.returnValue === "yes"); });
  document.body.append(box);
  box.showModal();
});

/** Show images like one of them, on the search page. */
export const findLike = (position) => { dispatchEvent(new CustomEvent("find-like", { detail: position })); };

/** Make sure that a class exists, asking before a new one is added. */
export const ensureClass = async (name) => {
  if (state.classes.some((known) => known.name === name)) return true;
  if (!(await confirmBox(`“${name}” is not a class yet. Add it?`, "Add the class"))) return false;
  return Boolean(await change("/api/class", { action: "add", name }));
};
