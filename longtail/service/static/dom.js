// Elements without templates, and the one way this page asks the service.

/** An element: make("p", {class: "a"}, "text", child). A property that is null or false is left out. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === false || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The element with this id. */
export const by = (id) => document.getElementById(id);

/** A bar that is full at 1. */
export function bar(share) {
  const inner = make("span");
  inner.style.setProperty("--part", `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`);
  return make("span", { class: "share", "aria-hidden": "true" }, inner);
}

export const percent = (share) => {
  const value = 100 * share;
  return value > 0 && value < 1 ? "<1%" : `${value.toFixed(0)}%`;
};

export const count = (number) => Number(number).toLocaleString("en");

/** What the service answers, as an object; a refusal is an Error with the service's sentence. */
export async function ask(path, body, signal) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, { ...options, signal });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the service answered with ${response.status}.`);
  return answer;
}

/** Only the last call counts: (body, done) => asks, and calls done with the answer unless another call came after. */
export function latest(path, failed) {
  let running = null;
  const asking = async (body, done) => {
    running?.abort();
    const own = (running = new AbortController());
    try {
      const answer = await ask(typeof path === "function" ? path(body) : path, typeof path === "function" ? undefined : body, own.signal);
      if (running === own) done(answer);
    } catch (error) {
      if (running === own && error.name !== "AbortError") failed(error);
    }
  };
  asking.forget = () => {
    running?.abort();
    running = null;
  };
  return asking;
}

/** Calls `work` when nothing has been asked for so many milliseconds. */
export function later(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}

/** Show a sentence on top of the page; nothing hides it. */
export function notice(text) {
  const place = by("notice");
  place.hidden = !text;
  place.textContent = text ?? "";
}
