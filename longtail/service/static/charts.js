// Small charts in SVG: lines, and bars in groups. Each has a caption and says in words what it shows.
import { make } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 360;
const HEIGHT = 220;
const LEFT = 38;
const BOTTOM = 26;
const TOP = 10;
const RIGHT = 10;

function draw(name, properties, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(properties)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A round step, so that about four lines of a grid are between 0 and the highest value. */
function step(highest) {
  const rough = highest / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

function frame(title, says, highest) {
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": says });
  const each = step(highest);
  const top = Math.ceil(highest / each - 1e-9) * each || 1;
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  for (let value = 0; value <= top + 1e-9; value += each) {
    svg.append(draw("line", { class: value ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  const [head, ...rest] = title;
  return { svg, y, figure: make("figure", {}, make("figcaption", {}, head, ...rest.map((line) => make("span", {}, line))), svg) };
}

/** Lines of points [x, y] over x from 0 (or the lowest) to the highest. `ideal`: the diagonal. */
export function lines(title, says, series, { xTitle = "", ideal = false, from = null } = {}) {
  const points = series.flat();
  const highest = Math.max(...points.map(([, value]) => value), ...(ideal ? points.map(([at]) => at) : []), 1e-9);
  const { svg, y, figure } = frame(title, says, highest);
  const first = from ?? Math.min(...points.map(([at]) => at));
  const last = Math.max(...points.map(([at]) => at), ...(ideal ? [highest] : []));
  const x = (at) => LEFT + 6 + ((at - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT - 12);
  if (ideal) svg.append(draw("path", { class: "ideal", d: `M${x(0)},${y(0)}L${x(last)},${y(last)}` }));
  series.forEach((row, place) => {
    const path = row.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
    svg.append(draw("path", { class: place ? "two" : "one", d: `M${path}` }));
    if (row.length <= 12) for (const [at, value] of row) svg.append(draw("circle", { class: place ? "dot second" : "dot", cx: x(at), cy: y(value), r: 3.5 }));
  });
  svg.append(draw("text", { x: LEFT + 6, y: HEIGHT - 7 }, String(Number(first.toPrecision(3)))));
  svg.append(draw("text", { x: WIDTH - RIGHT - 6, y: HEIGHT - 7, "text-anchor": "end" }, String(Number(last.toPrecision(3)))));
  svg.append(draw("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 7, "text-anchor": "middle" }, xTitle));
  return figure;
}

/** Bars in groups: groups [{name, values}], a value per series. */
export function bars(title, says, groups) {
  const highest = Math.max(...groups.flatMap((group) => group.values), 1e-9);
  const { svg, y, figure } = frame(title, says, highest);
  const room = (WIDTH - LEFT - RIGHT) / groups.length;
  groups.forEach((group, place) => {
    const wide = Math.min(44, (room * 0.62) / group.values.length);
    const start = LEFT + room * (place + 0.5) - (wide * group.values.length) / 2;
    group.values.forEach((value, one) => {
      const at = start + one * wide;
      svg.append(draw("rect", { class: one ? "fill-two" : "fill-one", x: at + 1, width: wide - 2, y: y(value), height: Math.max(0, y(0) - y(value)), rx: 3 }));
      svg.append(draw("text", { x: at + wide / 2, y: y(value) - 4, "text-anchor": "middle" }, value.toFixed(1)));
    });
    svg.append(draw("text", { x: LEFT + room * (place + 0.5), y: HEIGHT - 7, "text-anchor": "middle" }, group.name));
  });
  return figure;
}
