"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const say = () => { theme.textContent = current() === "dark" ? "Light theme" : "Dark theme"; };
  try { root.dataset.theme = localStorage.getItem("captune-theme") || ""; } catch { /* no storage: follow the system */ }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("captune-theme", root.dataset.theme); } catch { /* lasts for this page only */ }
    say();
  });
  dark.addEventListener("change", say);
  say();

  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim().toLowerCase();
  };
  const compare = (a, b, numeric) => {
    // What is unknown comes last, whichever way the rest is sorted.
    if (a === "" || b === "") return null;
    return numeric ? Number(a) - Number(b) : a.localeCompare(b);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.disabled = false;
      button.addEventListener("click", () => {
        const numeric = head.classList.contains("number");
        const was = head.getAttribute("aria-sort");
        const down = was === "none" ? numeric : was === "ascending";
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [value(row, column), row]);
        rows.sort(([a], [b]) => {
          const order = compare(a, b, numeric);
          if (order === null) return (a === "") - (b === "");
          return down ? -order : order;
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  for (const box of document.querySelectorAll("input[data-searches]")) {
    const rows = [...document.getElementById(box.dataset.searches).tBodies[0].rows];
    const galleries = [...document.querySelectorAll("#class-galleries article")];
    const entries = [...rows, ...galleries].map((entry) => [entry, entry.textContent.toLowerCase()]);
    const search = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const [entry, text] of entries) entry.hidden = !words.every((word) => text.includes(word));
      const found = rows.filter((row) => !row.hidden).length;
      document.getElementById("found").textContent = `${found} of ${rows.length} classes`;
    };
    box.addEventListener("input", search);
    search();
  }

  // The cards of the classes: another order, and only some of them.
  const cards = document.getElementById("class-galleries");
  const order = document.getElementById("card-sort");
  const only = document.getElementById("card-filter");
  const all = [...(cards?.children ?? [])];
  order?.addEventListener("change", () => {
    const key = order.value.replace("-", "");
    const sign = order.value.startsWith("-") ? 1 : -1;
    const rank = (card) => (card.dataset[key] === "" ? Infinity : sign * Number(card.dataset[key]));
    cards.append(...(key ? [...all].sort((a, b) => rank(a) - rank(b)) : all));
  });
  only?.addEventListener("change", () => {
    for (const card of all) card.classList.toggle("left-out", only.value !== "" && !(only.value in card.dataset));
  });

  // The map: classes before adaptation, and some classes alone.
  const points = [...document.querySelectorAll("#image-map use")];
  const before = document.getElementById("map-before");
  const legend = [...document.querySelectorAll(".legend button")];
  const choose = () => {
    const chosen = new Set(legend.filter((one) => one.ariaPressed === "true").map((one) => one.dataset.class));
    for (const point of points) {
      const own = before?.checked ? point.dataset.b : point.dataset.a;
      point.classList.toggle("faded", chosen.size > 0 && !chosen.has(own));
    }
  };
  before?.addEventListener("change", () => {
    for (const point of points) {
      const [fill, shape] = [point.getAttribute("fill"), point.getAttribute("href")];
      point.setAttribute("fill", point.dataset.fill);
      point.setAttribute("href", point.dataset.shape);
      [point.dataset.fill, point.dataset.shape] = [fill, shape];
    }
    choose();
  });
  for (const button of legend) {
    button.disabled = false;
    button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed !== "true");
      choose();
    });
  }

  // Large pictures: arrow keys lead through the pictures of the same gallery, Escape closes.
  const large = document.getElementById("large");
  let shown = null;
  const show = (picture) => {
    shown = picture;
    const image = picture.querySelector("img");
    large.querySelector("img").src = image.src;
    large.querySelector("img").alt = image.alt;
    large.querySelector("p").textContent = `${image.title}: ${picture.dataset.words}`;
    if (!large.open) large.showModal();
  };
  const step = (by) => {
    const all = [...(shown.closest(".gallery, .map") ?? document).querySelectorAll(".picture")];
    show(all[(all.indexOf(shown) + by + all.length) % all.length]);
  };
  document.addEventListener("click", (event) => {
    const picture = event.target.closest?.(".picture");
    if (picture) show(picture);
    else if (event.target === large) large.close();
  });
  for (const button of large.querySelectorAll("button")) {
    const by = Number(button.dataset.step);
    button.addEventListener("click", () => (by ? step(by) : large.close()));
  }
  large.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) step(by);
  });
  large.addEventListener("close", () => shown?.focus());
})();
