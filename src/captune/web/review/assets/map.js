// All images as points on a canvas: color by class, some as thumbnails, a legend that filters, a lasso to label.

import { answer, ask, attempt, classPicker, ensureClass, find, findLike, make, onState, picture, plural, say, state } from "./core.js";

const NEAR = 14; // pixels from a point within which it is meant
const MOST_NAMED = 300; // classes in the legend
const SIDE = 46; // of a thumbnail, in pixels of the page
const CELL = 84; // one thumbnail in so many pixels
let points = null; // x, y of each image from 0 to 1
let now = null;
let before = null;
let nClasses = 0;
let colors = "now";
const only = new Set(); // classes that are shown; all if empty
let hasThumbnails = true;
const thumbnails = new Map(); // loaded images by position
let isOpen = false;
let mapKind = "";
let version = -1;
const view = { x: 0, y: 0, scale: 1 };
const selected = new Set();
let focused = -1;
let lasso = null;
let isLasso = false;
let drag = null;
const fingers = new Map(); // places of pointers that touch the map
let gap = 0; // between two fingers
let frame = 0;
let image = null; // pixels of the canvas, kept from frame to frame

const canvas = make("canvas", { id: "canvas", tabindex: "0", role: "application",
  "aria-label": "Map of all images. Arrow keys go to the next image, Space selects it, plus and minus zoom." });
const tip = make("div", { id: "tip", hidden: true });
const status = make("p", { id: "selection", role: "status" });
const legend = make("ul", { id: "legend", "aria-label": "Classes" });
const lassoButton = make("button", { type: "button", id: "lasso", "aria-pressed": "false", onclick: () => setLasso(!isLasso) }, "Lasso");
const radio = (value, text) => make("label", {}, make("input", { type: "radio", name: "colors", value, checked: value === colors,
  onchange: () => { colors = value; redraw(); } }), text);

const setLasso = (on) => { isLasso = on; lassoButton.setAttribute("aria-pressed", String(on)); canvas.classList.toggle("lasso", on); };

const hue = (c) => (c * 137.508) % 360;
const ink = () => getComputedStyle(document.body).color.match(/\d+/g).map(Number);
const lightness = (c, [red] = ink()) => (c % 2 ? 0.45 : 0.55) + (red > 128 ? 0.12 : 0); // light ink: the dark theme
const cssColor = (c) => `hsl(${hue(c)} 70% ${100 * lightness(c)}%)`;

const isShown = (c) => !only.size || only.has(c);
const shownClasses = () => (colors === "now" ? now : before);

/** Return the color of each class as one 32-bit number, for fast drawing. */
const palette = () => {
  const found = new Uint32Array(state.classes.length + 1);
  const text = ink();
  for (let c = 0; c < found.length; c += 1) {
    const isGray = c === state.classes.length || !isShown(c);
    const [s, l] = isGray ? [0, text[0] > 128 ? 0.22 : 0.9] : [0.7, lightness(c, text)];
    const part = (n) => { const k = (n + hue(c) / 30) % 12; return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1)))); };
    found[c] = (255 << 24) | (part(4) << 16) | (part(8) << 8) | part(0);
  }
  return found;
};

/** Return the factors and offsets that turn points into pixels of the canvas. */
const frameOf = () => {
  const [fx, fy] = [canvas.width * 0.94 * view.scale, canvas.height * 0.94 * view.scale];
  return [fx, fy, canvas.width / 2 - (0.5 + view.x) * fx, canvas.height / 2 - (0.5 + view.y) * fy];
};
const place = (i) => { const [fx, fy, left, top] = frameOf(); return [points[2 * i] * fx + left, points[2 * i + 1] * fy + top]; };

const draw = () => {
  frame = 0;
  if (!isOpen || !points || !now) return;
  const ratio = devicePixelRatio || 1;
  const box = canvas.getBoundingClientRect();
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (!width || !height) return;
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d");
  if (image?.width !== width || image.height !== height) image = context.createImageData(width, height);
  const size = points.length > 40000 ? 1 : points.length > 4000 ? 1.6 : 2.5;
  paint(new Uint32Array(image.data.buffer), Math.max(1, Math.round(ratio * Math.min(6, size * Math.sqrt(view.scale)))));
  context.putImageData(image, 0, 0);
  if (hasThumbnails && state.has_pictures) drawThumbnails(context, ratio);
  drawMarks(context, ratio);
};

/** Color the dots of all points, selected ones with a rim; plain loops over numbers, because this happens in every frame. */
const paint = (pixels, radius) => {
  const { width, height } = canvas;
  const classColors = palette();
  const last = classColors.length - 1;
  const shown = shownClasses();
  const [fx, fy, left, top] = frameOf();
  const disk = (r) => Array.from({ length: 2 * r }, (_, row) => Math.round(Math.sqrt(r * r - (row + 0.5 - r) ** 2)));
  const dot = (i, halves, color) => {
    const r = halves.length / 2;
    const x = Math.floor(points[2 * i] * fx + left + 0.5);
    const y = Math.floor(points[2 * i + 1] * fy + top + 0.5);
    if (x < r || y < r || x >= width - r || y >= height - r) return;
    let middle = (y - r) * width + x;
    for (let row = 0; row < halves.length; row += 1, middle += width) {
      for (let at = middle - halves[row], end = middle + halves[row]; at < end; at += 1) pixels[at] = color;
    }
  };
  const [plain, rim] = [disk(radius), disk(radius + 2)];
  const colorOf = (i) => classColors[shown[i] < last ? shown[i] : last];
  pixels.fill(0);
  const n = points.length / 2;
  if (only.size) for (let i = 0; i < n; i += 1) if (!only.has(shown[i])) dot(i, plain, colorOf(i)); // what is filtered lies below
  for (let i = 0; i < n; i += 1) if (!only.size || only.has(shown[i])) dot(i, plain, colorOf(i));
  const [red, green, blue] = ink();
  for (const i of selected) dot(i, rim, (255 << 24) | (blue << 16) | (green << 8) | red);
  for (const i of selected) dot(i, plain, colorOf(i));
};

/** Return the images that are shown as thumbnails: one in each cell of a grid that moves with the map. */
const chooseThumbnails = (ratio) => {
  const [fx, fy, left, top] = frameOf();
  const level = 2 ** Math.floor(Math.log2(view.scale));
  const [wide, high] = [(view.scale * CELL * ratio) / (fx * level), (view.scale * CELL * ratio) / (fy * level)];
  const cells = new Map();
  const shown = shownClasses();
  const margin = (SIDE * ratio) / 2;
  for (let i = 0, n = points.length / 2; i < n; i += 1) {
    if (only.size && !only.has(shown[i])) continue;
    const [x, y] = [points[2 * i] * fx + left, points[2 * i + 1] * fy + top];
    if (x < margin || y < margin || x > canvas.width - margin || y > canvas.height - margin) continue;
    const cell = Math.floor(points[2 * i] / wide) * 65536 + Math.floor(points[2 * i + 1] / high);
    if (!cells.has(cell)) cells.set(cell, [i, x, y]);
  }
  const chosen = [];
  for (const one of cells.values()) {
    if (!chosen.some((other) => Math.max(Math.abs(one[1] - other[1]), Math.abs(one[2] - other[2])) < (SIDE + 4) * ratio)) chosen.push(one);
  }
  return chosen;
};

const thumbnail = (i) => {
  if (!thumbnails.has(i)) {
    if (thumbnails.size > 1000) thumbnails.clear();
    const found = new Image();
    found.addEventListener("load", redraw);
    found.src = `/image/${i}/96`;
    thumbnails.set(i, found);
  }
  return thumbnails.get(i);
};

const drawThumbnails = (context, ratio) => {
  const side = SIDE * ratio;
  const shown = shownClasses();
  context.lineWidth = 3 * ratio;
  for (const [i, x, y] of chooseThumbnails(ratio)) {
    const found = thumbnail(i);
    if (!found.complete || !found.naturalWidth) continue;
    const square = Math.min(found.naturalWidth, found.naturalHeight);
    context.drawImage(found, (found.naturalWidth - square) / 2, (found.naturalHeight - square) / 2, square, square, x - side / 2, y - side / 2, side, side);
    context.strokeStyle = selected.has(i) ? `rgb(${ink()})` : cssColor(shown[i]);
    context.strokeRect(x - side / 2, y - side / 2, side, side);
  }
};

const traceLasso = (context) => {
  context.beginPath();
  for (const place of lasso) context.lineTo(...place);
  context.closePath();
};

const drawMarks = (context, ratio) => {
  context.lineWidth = 2 * ratio;
  context.strokeStyle = `rgb(${ink()})`;
  if (lasso) { traceLasso(context); context.stroke(); }
  if (focused >= 0) { context.beginPath(); context.arc(...place(focused), 9 * ratio, 0, 7); context.stroke(); }
};

export const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };

/** Return the image nearest to a place on the canvas, or -1. */
const nearest = (x, y, limit, accept = () => true) => {
  let best = -1;
  let least = limit * limit;
  const [fx, fy, left, top] = frameOf();
  for (let i = 0, n = points.length / 2; i < n; i += 1) {
    const dx = points[2 * i] * fx + left - x;
    const dy = points[2 * i + 1] * fy + top - y;
    const distance = dx * dx + dy * dy;
    if (distance < least && (!only.size || only.has(now[i])) && accept(dx, dy, i)) { least = distance; best = i; }
  }
  return best;
};

const showTip = (i) => {
  tip.hidden = i < 0;
  if (i < 0) return;
  if (tip.dataset.position !== String(i)) {
    tip.dataset.position = String(i);
    tip.replaceChildren(picture(i, 192), make("span", {}, state.classes[now[i]]?.name ?? ""));
  }
  const ratio = devicePixelRatio || 1;
  const [x, y] = place(i);
  tip.style.left = `${Math.min(Math.max(0, x / ratio + 14), canvas.clientWidth - 210)}px`;
  tip.style.top = `${Math.min(Math.max(0, y / ratio + 14), canvas.clientHeight - 210)}px`;
};

const showSelection = () => {
  status.textContent = selected.size ? `${plural(selected.size, "image")} selected` : "";
  labelForm.hidden = !selected.size;
  clearButton.hidden = !selected.size;
  likeButton.hidden = selected.size !== 1;
  redraw();
};
const labelForm = classPicker("Class of the selected images", "Label them", async (name) => {
  if (!selected.size || !(await ensureClass(name))) return;
  answer("label", [...selected], name);
  say(`${plural(selected.size, "image")} labeled as ${name}.`);
  selected.clear();
  showSelection();
});
const clearButton = make("button", { type: "button", hidden: true, onclick: () => { selected.clear(); showSelection(); } }, "Clear selection");
const likeButton = make("button", { type: "button", hidden: true, onclick: () => findLike([...selected][0]) }, "More like this");

/** Select the points inside the lasso: it is filled on a hidden canvas, so that each point is one look at its pixel. */
const selectInside = () => {
  const { width, height } = canvas;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  traceLasso(context);
  context.fill("evenodd");
  const { data } = context.getImageData(0, 0, width, height);
  const [fx, fy, left, top] = frameOf();
  for (let i = 0, n = points.length / 2; i < n; i += 1) {
    const x = Math.floor(points[2 * i] * fx + left);
    const y = Math.floor(points[2 * i + 1] * fy + top);
    if (x >= 0 && y >= 0 && x < width && y < height && data[4 * (y * width + x) + 3] > 127 && isShown(now[i])) selected.add(i);
  }
};

const pointer = (event) => {
  const box = canvas.getBoundingClientRect();
  const ratio = canvas.width / box.width;
  return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
};

canvas.addEventListener("pointerdown", (event) => {
  if (!points) return;
  canvas.setPointerCapture(event.pointerId);
  const start = pointer(event);
  fingers.set(event.pointerId, start);
  focused = -1;
  if (fingers.size > 1) { drag = null; lasso = null; gap = 0; redraw(); return; }
  if (isLasso || event.shiftKey) lasso = [start];
  else drag = { start, x: view.x, y: view.y, moved: false };
});
canvas.addEventListener("pointermove", (event) => {
  if (!points) return;
  const [x, y] = pointer(event);
  if (fingers.has(event.pointerId)) fingers.set(event.pointerId, [x, y]);
  if (fingers.size > 1) { pinch(); return; }
  if (lasso) { lasso.push([x, y]); redraw(); return; }
  if (drag) {
    const [fx, fy] = frameOf();
    drag.moved ||= Math.hypot(x - drag.start[0], y - drag.start[1]) > 4;
    moveTo(drag.x - (x - drag.start[0]) / fx, drag.y - (y - drag.start[1]) / fy);
    showTip(-1);
    return;
  }
  showTip(nearest(x, y, NEAR * (devicePixelRatio || 1)));
});
const lift = (event) => {
  fingers.delete(event.pointerId);
  if (lasso) {
    if (lasso.length > 2) selectInside();
    lasso = null;
    setLasso(false);
    showSelection();
  } else if (drag && !drag.moved) {
    const found = nearest(...pointer(event), NEAR * (devicePixelRatio || 1));
    if (found >= 0) { toggle(found); showTip(found); }
  }
  drag = null;
};
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", (event) => { drag = null; lasso = null; lift(event); });

/** Zoom as two fingers move apart. */
const pinch = () => {
  const [[ax, ay], [bx, by]] = fingers.values();
  const distance = Math.hypot(ax - bx, ay - by);
  if (gap) zoom(distance / gap, [(ax + bx) / 2, (ay + by) / 2]);
  gap = distance;
};

canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) showTip(-1); });
canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, pointer(event)); }, { passive: false });

/** Move the view; its middle stays on the map. */
const moveTo = (x, y) => {
  [view.x, view.y] = [x, y].map((middle) => Math.min(0.5, Math.max(-0.5, middle)));
  redraw();
};

const toggle = (i) => { if (selected.has(i)) selected.delete(i); else selected.add(i); showSelection(); };

const zoom = (by, [x, y] = [canvas.width / 2, canvas.height / 2]) => {
  const scale = Math.min(200, Math.max(1, view.scale * by));
  const [dx, dy] = [(x - canvas.width / 2) / (0.94 * canvas.width), (y - canvas.height / 2) / (0.94 * canvas.height)];
  const [newX, newY] = [view.x + dx / view.scale - dx / scale, view.y + dy / view.scale - dy / scale];
  view.scale = scale;
  moveTo(newX, newY);
  showTip(focused);
};

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
canvas.addEventListener("keydown", (event) => {
  if (!points) return;
  if (event.key in ARROWS) {
    const [ax, ay] = ARROWS[event.key];
    const from = focused >= 0 ? place(focused) : [canvas.width / 2, canvas.height / 2];
    const ahead = (dx, dy, i) => i !== focused && dx * ax + dy * ay > 0 && Math.abs(dx * ay - dy * ax) <= dx * ax + dy * ay;
    const found = nearest(...from, Infinity, focused < 0 ? () => true : ahead);
    if (found >= 0) focus(found);
  } else if (event.key === " " && focused >= 0) toggle(focused);
  else if (event.key === "+" || event.key === "=") zoom(1.3);
  else if (event.key === "-") zoom(1 / 1.3);
  else return;
  event.preventDefault();
});

const focus = (i) => {
  focused = i;
  const [x, y] = place(i);
  if (x < 0 || y < 0 || x > canvas.width || y > canvas.height) moveTo(points[2 * i] - 0.5, points[2 * i + 1] - 0.5);
  showTip(i);
  status.textContent = state.classes[now[i]]?.name ?? "";
  redraw();
};

const numbers = async (path, Kind) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(path);
  return new Kind(await response.arrayBuffer());
};

const load = () => attempt(async () => {
  if (!points) await ask("/api/map", {});
  if (!points || mapKind !== state.map) { mapKind = state.map; points = await numbers("/api/map/points", Float32Array); }
  if (version !== state.version) {
    version = state.version;
    const all = await numbers("/api/map/classes", Uint16Array);
    const n = all.length / 2;
    if (nClasses !== state.classes.length) only.clear(); // the numbers of the classes are others now
    nClasses = state.classes.length;
    [now, before] = [all.subarray(0, n), all.subarray(n)];
  }
  showLegend();
  note.textContent = { quick: "A better map is being computed …", full: "" }[mapKind] ?? "";
  redraw();
});

const showLegend = () => {
  const counts = new Map();
  for (const c of now) counts.set(c, (counts.get(c) || 0) + 1);
  const order = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  const all = make("li", {}, make("button", { type: "button", "aria-pressed": String(!only.size), onclick: () => { only.clear(); showLegend(); legend.querySelector("button").focus(); redraw(); } }, "All classes"));
  const rest = order.length > MOST_NAMED ? [make("li", { class: "note" }, `and ${order.length - MOST_NAMED} smaller ones`)] : [];
  legend.replaceChildren(all, ...order.slice(0, MOST_NAMED).map((c) => {
    const dot = make("span", { class: "dot" });
    dot.style.background = cssColor(c);
    return make("li", {}, make("button", { type: "button", "aria-pressed": String(only.has(c)), "data-class": String(c),
      onclick: () => { if (only.has(c)) only.delete(c); else only.add(c); showLegend(); legend.querySelector(`[data-class="${c}"]`)?.focus(); redraw(); } }, dot, state.classes[c]?.name ?? "", make("span", { class: "note" }, counts.get(c).toLocaleString("en"))));
  }), ...rest);
};

const note = make("p", { id: "map-note", class: "note" });
labelForm.hidden = true;
find("map-box").append(
  make("div", { class: "tools" }, make("fieldset", {}, make("legend", {}, "Color by class"), radio("now", "now"), radio("before", "at the start")),
    make("label", { class: "check" }, make("input", { type: "checkbox", checked: true, onchange: (event) => { hasThumbnails = event.target.checked; redraw(); } }), "thumbnails"),
    lassoButton,
    make("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(1.4) }, "+"),
    make("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(1 / 1.4) }, "−"), status, labelForm, likeButton, clearButton, note),
  make("div", { id: "map-view" }, make("div", { class: "canvas-box" }, canvas, tip), legend));

export const open = (visible) => {
  isOpen = visible;
  if (visible) load();
};
addEventListener("resize", redraw);
onState(() => { if (isOpen) load(); });
