// A text and its labels, as it is typed; why; the cut-off.
import { bar, by, ask, later, latest, make, notice, percent } from "./dom.js";

const K = 10;
const WAIT = 120; // milliseconds without a key before the service is asked
const EXPLAINED_WORDS = 0.02; // of the largest weight: less is not marked

/** Sets up the section for one model or two, each with a column of its own. */
export function setUp(models) {
  const columns = models.map((model) => new Column(model, models.length > 1));
  by("answers").append(...columns.map((column) => column.element));
  const text = by("text");
  const renew = () => {
    const given = text.value.trim();
    for (const column of columns) column.asked(given);
  };
  text.addEventListener("input", later(renew, WAIT));
  const cut = () => {
    const least = by("cutoff").value / 100;
    by("cutoff-value").textContent = percent(least);
    by("cutoff-means").replaceChildren(...meaning(models[0], least));
    for (const column of columns) column.cut(least);
  };
  by("cutoff").addEventListener("input", cut);
  cut();
  renew();
}

/** What a cut-off means, by the validation documents: a sentence as nodes. */
function meaning(model, least) {
  const { thresholds, precision, recall } = model.cutoffs;
  if (!thresholds.length) return ["This model has no validation documents to say what a cut-off means."];
  let place = thresholds.length - 1; // thresholds fall
  while (place > 0 && thresholds[place] < least) place -= 1;
  if (thresholds[place] < least) return ["No label of a validation document was as likely as that."];
  return [
    "On validation documents ",
    make("strong", {}, percent(precision[place])),
    " of the labels above it are right (precision), and they are ",
    make("strong", {}, percent(recall[place])),
    " of all that are right (recall).",
  ];
}

/** The answers of one model. */
class Column {
  constructor(model, isOneOfTwo) {
    this.model = model;
    this.least = 0;
    this.text = "";
    this.labels = [];
    this.list = make("ol", { class: "answer" });
    this.line = make("p", { class: "line", hidden: true });
    const title = model.name === "compare" ? "The other run" : "This run";
    const head = isOneOfTwo ? make("h2", {}, `${title} `, make("span", { class: "id muted" }, model.hash.slice(0, 8))) : null;
    this.element = make("div", {}, head, this.line, this.list);
    this.ask = latest("/predict", (error) => notice(error.message));
  }

  get which() {
    return this.model.name ? { which: this.model.name } : {};
  }

  asked(text) {
    this.text = text;
    if (!text) {
      this.ask.forget();
      this.labels = [];
      this.line.hidden = true;
      this.list.replaceChildren(make("li", {}, make("p", { class: "empty" }, "The labels will stand here, the likeliest first.")));
      return;
    }
    by("answers").setAttribute("aria-busy", "true");
    this.ask({ texts: [text], k: K, ...this.which }, ({ predictions: [found] }) => this.answered(text, found));
  }

  answered(text, found) {
    notice(null);
    by("answers").setAttribute("aria-busy", "false");
    this.line.hidden = found.known;
    this.line.textContent = "No word of this text is known. These are the most frequent labels.";
    this.labels = found.labels;
    this.list.replaceChildren(...found.labels.map((label) => this.item(text, label)));
    this.cut(this.least);
    const best = found.labels[0];
    if (!this.model.name) by("told").textContent = best ? `${found.labels.length} labels; the likeliest is ${best.text}.` : "No label.";
  }

  /** Hide the labels that are below the cut-off, and say how many they are. */
  cut(least) {
    this.least = least;
    [...this.list.children].forEach((item, place) => {
      if (!this.labels[place]) return;
      item.hidden = this.labels[place].probability < least;
    });
    const hidden = this.labels.filter((label) => label.probability < least).length;
    this.element.querySelector(".rest")?.remove();
    if (hidden) this.element.append(make("p", { class: "line rest" }, `${hidden} of ${this.labels.length} labels are below the cut-off.`));
  }

  item(text, label) {
    const why = make("div", { class: "why", hidden: true, id: `why-${this.model.name}-${label.id}` });
    const id = label.id === label.text ? null : make("span", { class: "id" }, label.id);
    const button = make(
      "button",
      { type: "button", class: "ask-why", "aria-expanded": "false", "aria-controls": why.id },
      make("span", { class: "said" }, label.text || label.id, id),
      make("span", { class: "chance" }, percent(label.probability)),
      bar(label.probability),
    );
    button.addEventListener("click", async () => {
      why.hidden = !why.hidden;
      button.setAttribute("aria-expanded", String(!why.hidden));
      if (why.hidden || why.childElementCount) return;
      why.append(make("p", { class: "line" }, "Looking for the reasons …"));
      try {
        const { labels: [reason], known } = await ask("/explain", { text, labels: [label.id], ...this.which });
        why.replaceChildren(...(known ? reasons(text, reason) : [make("p", { class: "line" }, "No word of the text is known: this is the label's share of the training documents.")]));
      } catch (error) {
        why.replaceChildren(make("p", { class: "line" }, error.message));
      }
    });
    return make("li", {}, button, why);
  }
}

/** Why a label: the words, the documents, the parts of the score. */
function reasons(text, reason) {
  const documents = reason.documents.map((one) =>
    make("li", {}, make("span", {}, one.text ?? one.id ?? "a training document"), make("span", { class: "muted" }, `${percent(one.share)} of the memory`), bar(one.share)),
  );
  return [
    make("h3", {}, "Words that weigh"),
    make("p", { class: "words" }, ...marked(text, reason.words)),
    make("p", { class: "line" }, ...named(reason)),
    make("h3", {}, "Nearest training documents that have it"),
    documents.length ? make("ul", { class: "near" }, ...documents) : make("p", { class: "line" }, "There is none."),
    make("h3", {}, "Its score is the sum of"),
    make("dl", { class: "parts" }, ...Object.entries(reason.parts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value.toFixed(3))))),
    make("p", { class: "line" }, make("a", { href: `#labels/${encodeURIComponent(reason.id)}` }, "More about this label")),
  ];
}

function named(reason) {
  if (!reason.named.length) return ["No word by itself speaks for it."];
  return [`Without ${reason.named.map((word) => `“${word}”`).join(", ")} its score falls from ${reason.score.toFixed(2)} to ${reason.without.toFixed(2)}.`];
}

/** The text with each word marked by its weight. Places count characters, not UTF-16 units. */
function marked(text, words) {
  const letters = [...text];
  const most = Math.max(...words.map((word) => Math.abs(word.weight)), 1e-9);
  const places = words
    .filter((word) => Math.abs(word.weight) >= EXPLAINED_WORDS * most)
    .flatMap((word) => word.places.map(([start, end]) => ({ start, end, weight: word.weight })))
    .sort((one, other) => one.start - other.start);
  const nodes = [];
  let last = 0;
  for (const { start, end, weight } of places) {
    nodes.push(letters.slice(last, start).join(""));
    const mark = make("mark", { class: weight < 0 ? "against" : "for", title: `${weight < 0 ? "against" : "for"} it: ${weight.toFixed(3)}` }, letters.slice(start, end).join(""));
    mark.style.setProperty("--weight", (Math.abs(weight) / most).toFixed(3));
    nodes.push(mark);
    last = end;
  }
  nodes.push(letters.slice(last).join(""));
  return nodes;
}
