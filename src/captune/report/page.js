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
  for (const box of document.querySelectorAll("input[data-searches]")) {
    const rows = [...document.getElementById(box.dataset.searches).tBodies[0].rows];
    const status = document.getElementById(box.dataset.status);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const search = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        found += row.hidden ? 0 : 1;
      });
      status.textContent = `${found} of ${rows.length} classes`;
    };
    box.closest(".tools").hidden = false;
    box.addEventListener("input", search);
    search();
  }
})();
