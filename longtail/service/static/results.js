// What a run measured, and two runs side by side.
import { bars, lines } from "./charts.js";
import { by, make } from "./dom.js";

const BINS = ["head", "torso", "tail"];
const LAST = "fused"; // the row of what answers

export function setUp(models) {
  const place = by("measured");
  if (!Object.keys(models[0].metrics).length) {
    place.replaceChildren(make("p", { class: "empty" }, "This model was handed on without the results of its run."));
    return;
  }
  place.replaceChildren(...[key(models), phases(models), frequency(models), curves(models), trust(models)].filter(Boolean));
}

function key(models) {
  if (models.length < 2) return null;
  return make("ul", { class: "key" }, ...models.map((one) => make("li", {}, `${one.name ? "the other run" : "this run"} ${one.hash.slice(0, 8)}`)));
}

/** A number, and how far the other run's is from it. */
function cell(value, other) {
  if (value === undefined || value === null) return make("td", {}, "–");
  if (other === undefined || other === null) return make("td", {}, value.toFixed(2));
  const change = other - value;
  const shown = `${change >= 0 ? "+" : "−"}${Math.abs(change).toFixed(2)}`;
  return make("td", {}, `${value.toFixed(2)} `, make("span", { class: change >= 0 ? "up" : "down" }, shown));
}

function phases([one, other]) {
  const rows = Object.entries(one.metrics).map(([name, measured]) =>
    make("tr", { class: name === LAST ? "best" : null }, make("th", { scope: "row" }, name), ...one.columns.map((column) => cell(measured[column], other?.metrics[name]?.[column]))),
  );
  const caption = other ? "This run, and how far the other one is from it." : "Each phase by itself; the last row is what answers.";
  return make("section", { "aria-labelledby": "phases" },
    make("h2", { id: "phases" }, "Phases"),
    make("p", { class: "muted" }, caption),
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of the phases" },
      make("table", {},
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Phase"), ...one.columns.map((column) => make("th", { scope: "col" }, column)))),
        make("tbody", {}, ...rows))));
}

function frequency(models) {
  const [one] = models;
  if (!one.bins.length) return null;
  const metrics = Object.keys(one.bins[0]).filter((name) => name.includes("@"));
  const names = [...new Set(one.bins.map((row) => row.row))];
  const charts = make("div", { class: "charts" });
  const choose = (options, chosen) => make("select", {}, ...options.map((name) => make("option", { value: name, selected: name === chosen }, name)));
  const metric = choose(metrics, "R@10");
  const shown = () => {
    const value = (model, row, bin) => model.bins.find((found) => found.row === row && found.bin === bin)?.[metric.value] ?? 0;
    charts.replaceChildren(...names.map((row) => {
      const groups = BINS.map((bin) => ({ name: bin, values: models.map((model) => value(model, row, bin)) }));
      const says = `${metric.value} of ${row}: ${groups.map((group) => `${group.name} ${group.values.map((found) => found.toFixed(1)).join(" and ")}`).join(", ")}.`;
      return bars([row], says, groups);
    }).reverse());
  };
  metric.addEventListener("change", shown);
  shown();
  return make("section", { "aria-labelledby": "bins" },
    make("h2", { id: "bins" }, "Frequent and rare labels"),
    make("p", { class: "muted" }, "Head, torso and tail: labels with many, some and few training documents."),
    make("div", { class: "tools" }, make("label", {}, "Metric ", metric)), charts);
}

function curves(models) {
  const found = Object.keys(models[0].curves).flatMap((stage) => {
    const rows = models.map((model) => model.curves[stage] ?? []);
    return [["goal", "the goal, on validation documents"], ["loss", "the loss"]].flatMap(([column, what]) => {
      const series = rows.map((one) => one.filter((row) => typeof row[column] === "number").map((row) => [row.epoch, row[column]])).filter((one) => one.length);
      if (!series.length) return [];
      const last = series[0].at(-1)[1].toFixed(2);
      return [lines([stage, what], `${stage}: ${what} by epoch; at the end ${last}.`, series, { xTitle: "epoch" })];
    });
  });
  if (!found.length) return null;
  return make("section", { "aria-labelledby": "curves" }, make("h2", { id: "curves" }, "Training"), make("div", { class: "charts" }, ...found));
}

function trust(models) {
  const charts = [];
  const cut = models.map(({ cutoffs }) => cutoffs.recall.map((at, place) => [100 * at, 100 * cutoffs.precision[place]])).filter((one) => one.length);
  if (cut.length) charts.push(lines(["Precision and recall", "of all labels above a cut-off, by the cut-off"], "Precision falls as recall rises.", cut, { xTitle: "recall, %", from: 0 }));
  const said = models.map((model) => model.reliability.map((row) => [row.probability, row.right])).filter((one) => one.length);
  if (said.length) {
    const error = models[0].probabilities["calibration error"];
    const says = `What is said to be likely, and what was right${error === undefined ? "" : `; the mean distance is ${error.toFixed(1)} points`}.`;
    charts.push(lines(["Are probabilities right?", says], says, said, { xTitle: "said, %", ideal: true, from: 0 }));
  }
  if (!charts.length) return null;
  return make("section", { "aria-labelledby": "trust" }, make("h2", { id: "trust" }, "Probabilities"), make("div", { class: "charts" }, ...charts));
}
