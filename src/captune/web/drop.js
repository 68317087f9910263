"use strict";
(() => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const [form, input, send, status, result, picture] = ["drop", "file", "send", "status", "result", "picture"].map(find);
  const theme = find("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => { theme.textContent = current() === "dark" ? "Light theme" : "Dark theme"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = current() === "dark" ? "light" : "dark"; name(); });
  dark.addEventListener("change", name);
  name();
  send.hidden = true; // choosing a file is enough
  document.querySelectorAll(".scripted").forEach((part) => { part.hidden = false; });
  find("address").textContent = `${location.origin}/`;

  const say = (text, problem) => { status.textContent = text; status.classList.toggle("problem", Boolean(problem)); };
  const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
  let latest = 0;

  const show = (answer, file) => {
    const rows = answer.predictions.map(({ label, probability }) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = label;
      const number = document.createElement("td");
      number.className = "number";
      number.textContent = `${(100 * probability).toFixed(1)}%`;
      const bar = document.createElement("td");
      bar.className = "bar";
      bar.setAttribute("aria-hidden", "true");
      const length = document.createElement("span");
      length.style.width = `${100 * probability}%`;
      bar.append(length);
      row.append(head, number, bar);
      return row;
    });
    find("answers").tBodies[0].replaceChildren(...rows);
    URL.revokeObjectURL(picture.src);
    picture.hidden = false;
    picture.src = URL.createObjectURL(file);
    picture.alt = `The image ${file.name}`;
    result.hidden = false;
    const { label, probability } = answer.predictions[0];
    say(`${file.name}: ${label}, ${(100 * probability).toFixed(1)}%`);
  };

  const classify = async (file) => {
    if (!file) return;
    const number = ++latest; // an answer that arrives after a newer image was chosen is not shown
    const most = Number(form.dataset.maxBytes);
    result.hidden = true;
    if (file.size > most) { say(`${file.name} has ${megabytes(file.size)}, the limit is ${megabytes(most)}.`, true); return; }
    say(`Classifying ${file.name} …`);
    try {
      const response = await fetch("/predict?top_k=5", { method: "POST", body: file });
      const answer = await response.json();
      if (number !== latest) return;
      if (response.ok) show(answer, file); else say(`${file.name}: ${answer.error}`, true);
    } catch {
      if (number === latest) say("The service did not answer. Is it still running?", true);
    }
  };

  picture.addEventListener("error", () => { picture.hidden = true; }); // a TIFF that the browser cannot show
  input.addEventListener("change", () => classify(input.files[0]));
  form.addEventListener("submit", (event) => { event.preventDefault(); classify(input.files[0]); });
  const over = (on) => (event) => { event.preventDefault(); form.classList.toggle("over", on); };
  document.addEventListener("dragover", over(true)); // the whole page takes a drop, so that a near miss loses nothing
  document.addEventListener("dragleave", over(false));
  document.addEventListener("drop", (event) => { over(false)(event); classify(event.dataTransfer.files[0]); });
  document.addEventListener("paste", (event) => classify(event.clipboardData.files[0]));
})();
