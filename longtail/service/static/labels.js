// Labels: searched, and one of them with its frequency, its results and its neighbours.
import { by, ask, count, later, latest, make, notice } from "./dom.js";

const WAIT = 120;
const LIMIT = 50;
let searched = false;

export function setUp() {
  by("query").addEventListener("input", later(search, WAIT));
}

const asking = latest((query) => `/labels?limit=${LIMIT}&q=${encodeURIComponent(query)}`, (error) => notice(error.message));

function search() {
  searched = true;
  asking(by("query").value.trim(), ({ labels, total }) => {
    notice(null);
    const all = labels.length < LIMIT ? "" : ` (the first ${LIMIT})`;
    by("found-count").textContent = `${count(labels.length)} labels found${all}, of ${count(total)}`;
    by("found").replaceChildren(...labels.map(row));
  });
}

const address = (id) => `#labels/${encodeURIComponent(id)}`;

function row(label) {
  const docs = make("span", { class: "docs" }, `${count(label.docs)} documents`);
  const id = label.id === label.text ? null : make("span", { class: "id" }, label.id);
  return make("li", {}, make("button", { type: "button", class: "row", onclick: () => (location.hash = address(label.id)) }, make("span", {}, label.text || label.id), docs, id));
}

/** Shows the label with this id, or none. */
export async function show(id) {
  if (!searched) search();
  by("label").hidden = id === null;
  if (id === null) return;
  try {
    const label = await ask(`/labels/${encodeURIComponent(id)}`);
    if (location.hash !== address(id)) return; // another one was asked for meanwhile
    notice(null);
    by("label").replaceChildren(...card(label));
  } catch (error) {
    by("label").replaceChildren(make("p", { class: "empty" }, error.message));
  }
}

function card(label) {
  const facts = [["Training documents", count(label.docs)]];
  const seen = label.results;
  if (seen) {
    facts.push(["Test documents", count(seen.test_docs)], ["Among the best 5", count(seen["predicted@5"])], ["… and right", count(seen["right@5"])]);
    if (seen["recall@5"] !== null) facts.push(["Recall at 5", `${seen["recall@5"].toFixed(0)}%`]);
    if (seen.bin) facts.push(["Frequency", seen.bin]);
  }
  return [
    make("h2", {}, label.text || label.id),
    make("p", { class: "id muted" }, label.id),
    make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    seen ? null : make("p", { class: "muted" }, "This model has no results of single labels with it."),
    make("h3", {}, "Neighbours"),
    make("ul", { class: "rows" }, ...label.neighbours.map(row)),
  ].filter(Boolean);
}
