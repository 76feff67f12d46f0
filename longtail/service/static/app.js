// The page: which section is shown, light or dark, and what the models are.
import { setUp as setUpAsk } from "./ask.js";
import { by, ask, count, notice } from "./dom.js";
import { setUp as setUpLabels, show as showLabel } from "./labels.js";
import { setUp as setUpResults } from "./results.js";

const SECTIONS = ["ask", "labels", "results"];

function turn() {
  const [wanted, ...rest] = location.hash.slice(1).split("/");
  if (wanted === "main") return;
  const shown = SECTIONS.includes(wanted) ? wanted : SECTIONS[0];
  for (const name of SECTIONS) by(name).hidden = name !== shown;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown === "labels") showLabel(rest.length ? decoded(rest.join("/")) : null);
}

/** The id in an address; null where it is none, as one with a lone %. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

function setUpTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const say = () => by("theme").setAttribute("aria-label", now() === "dark" ? "Switch to light" : "Switch to dark");
  by("theme").addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // no storage: the choice lasts as long as the page
    }
    say();
  });
  dark.addEventListener("change", say);
  say();
}

function describe(models) {
  const [first] = models;
  const docs = first.data.train_docs;
  const learnt = docs ? `, learnt from ${count(docs)} documents` : "";
  by("about").textContent = `${first.dataset || "This model"} has ${count(first.labels)} labels${learnt}.`;
  by("which-model").textContent = models.map((one) => `${one.name || "model"} ${one.hash.slice(0, 12)}, made ${one.created.slice(0, 10)}`).join(" · ");
}

async function start() {
  setUpTheme();
  try {
    const { models } = await ask("/models");
    describe(models);
    setUpAsk(models);
    setUpLabels();
    setUpResults(models);
  } catch (error) {
    notice(`The page could not be set up: ${error.message}`);
    return;
  }
  addEventListener("hashchange", turn);
  turn();
  document.documentElement.dataset.ready = "";
}

start();
