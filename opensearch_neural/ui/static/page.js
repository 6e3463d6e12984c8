"use strict";
// The page works without this script. With it: the same document is lit up in all columns, keys walk through the hits,
// texts are copied, and sliders of weight and window search again at once.

const every = (selector, within = document) => [...within.querySelectorAll(selector)];
const SILENT = "the page's server does not answer";
const say = (text) => { document.getElementById("said").textContent = text; };

function light(id) {
  for (const each of every("[data-document]")) each.classList.toggle("lit", id !== null && each.dataset.document === id);
}
for (const kind of ["mouseover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const hit = event.target.closest("[data-document]");
    if (hit) light(hit.dataset.document);
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.nextElementSibling;
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "Selected: copy with your keyboard";
  }
  say(button.textContent);
});

function walk(step, across) {
  const columns = every(".column").map((column) => every(".hit", column));
  const at = columns.findIndex((hits) => hits.includes(document.activeElement));
  const row = at < 0 ? -1 : columns[at].indexOf(document.activeElement);
  const hits = columns[across && at >= 0 ? (at + step + columns.length) % columns.length : Math.max(at, 0)];
  const next = hits && hits[Math.min(Math.max(across ? Math.max(row, 0) : row + step, 0), hits.length - 1)];
  if (next) next.focus();
}
const KEYS = {
  j: () => walk(1), k: () => walk(-1), l: () => walk(1, true), h: () => walk(-1, true),
  n: () => document.querySelector("a[rel=next]")?.click(), p: () => document.querySelector("a[rel=prev]")?.click(),
  "/": () => document.querySelector("[name=q]")?.focus(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=radio]), textarea, select")) return;
  const choice = document.activeElement.closest(".hit")?.querySelector(`input[value="${event.key.match(/^[0-3]$/)}"]`);
  const act = choice ? () => choice.click() : KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

const kept = new Map(); // {document: its last kept grade}
const chosen = new Map(); // {document: the latest grade to keep, as it is sent}
let waiting = 0;
let sent = Promise.resolve(true); // whether the last grade is kept, once it is known
for (const radio of every(".grades input[checked]")) kept.set(radio.closest(".hit").dataset.document, Number(radio.value));

// All copies of a document show the same grade.
function show(id, grade, refused) {
  for (const hit of every(".hit").filter((each) => each.dataset.document === id)) {
    for (const radio of every(".grades input", hit)) radio.checked = Number(radio.value) === grade;
    hit.classList.toggle("refused", refused);
  }
}
async function send(told) {
  let ok = false;
  try {
    const answer = await fetch("grade", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(told) });
    ok = answer.ok;
    say(ok ? `grade ${told.grade} is kept` : await answer.text());
  } catch {
    say(`grade ${told.grade} is not kept: ${SILENT}`);
  }
  document.getElementById("said").classList.toggle("error", !ok);
  if (ok) kept.set(told.document, told.grade);
  if (chosen.get(told.document) === told) show(told.document, kept.get(told.document), !ok);
  waiting -= 1;
  return ok;
}
document.addEventListener("change", (event) => {
  const hit = event.target.closest(".grades")?.closest(".hit");
  if (!hit) return;
  const { query, who } = document.body.dataset;
  const told = { query, who, grade: Number(event.target.value), document: hit.dataset.document };
  chosen.set(told.document, told);
  show(told.document, told.grade, false);
  waiting += 1;
  sent = sent.then(() => send(told)); // one after the other: the last line of the file counts
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || !waiting || event.ctrlKey || event.metaKey) return;
  event.preventDefault(); // else grades that wait would not be sent
  sent.then((ok) => ok && link.click());
});

const form = document.getElementById("asked");
let searching = null;
async function searchAgain() {
  if (searching) searching.abort();
  searching = new AbortController();
  const address = "?" + new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch(address, { signal: searching.signal });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("results").replaceWith(document.adoptNode(page.getElementById("results")));
    history.replaceState(null, "", address);
    say("results changed");
  } catch (error) {
    if (error.name !== "AbortError") say(SILENT);
  }
}
if (form) {
  for (const field of every("[data-slide]", form)) {
    const [min, max, step, usual] = field.dataset.slide.split(" ");
    const slider = Object.assign(document.createElement("input"), { type: "range", min, max, step });
    slider.value = field.value || usual;
    slider.setAttribute("aria-label", field.name.replace("_", " ") + ", slider");
    slider.addEventListener("input", () => { field.value = slider.value; searchAgain(); });
    field.addEventListener("change", () => { slider.value = field.value; });
    field.after(slider);
  }
  for (const choice of every("select[name=engine]", form)) {
    choice.addEventListener("change", () => {
      const engine = choice.value.replace(" ", "-");
      for (const each of every("[data-engines]", choice.closest("fieldset"))) each.hidden = !each.dataset.engines.split(" ").includes(engine);
    });
  }
}
