// The interface, as the service's own OpenAPI document describes it, to read and to try.
import { ask, by, make, notice } from "./dom.js";

const EXAMPLES = {
  "/predict": { texts: ["a text", { id: "second", text: "another text" }], k: 5 },
  "/explain": { text: "a text", k: 1 },
  "post /labels": { labels: [{ id: "new-1", text: "what the label is called", examples: [] }] },
  "post /labels/remove": { ids: ["new-1"] },
  "patch /labels": { texts: { "new-1": "what it is called now" } },
};

function tryIt(path, method, operation) {
  const fields = (operation.parameters ?? []).map((parameter) => ({ parameter, input: make("input", { id: `${method}${path}${parameter.name}` }) }));
  const example = EXAMPLES[`${method} ${path}`] ?? EXAMPLES[path];
  const body = operation.requestBody ? make("textarea", { rows: 6, id: `${method}${path}-body`, spellcheck: "false" }) : null;
  if (body) body.value = JSON.stringify(example ?? {}, null, 2);
  const token = operation.security ? make("input", { id: `${method}${path}-token`, autocomplete: "off" }) : null;
  const shown = make("pre", { hidden: true, tabindex: "0", "aria-label": "Answer" });
  const send = async () => {
    let address = path;
    const query = new URLSearchParams();
    for (const { parameter, input } of fields) {
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.append(parameter.name, input.value);
    }
    const headers = { ...(body ? { "content-type": "application/json" } : {}), ...(token?.value ? { authorization: `Bearer ${token.value}` } : {}) };
    shown.hidden = false;
    try {
      const response = await fetch(`${address}${query.size ? `?${query}` : ""}`, { method: method.toUpperCase(), headers, body: body?.value });
      const text = await response.text();
      let pretty = text;
      try {
        pretty = JSON.stringify(JSON.parse(text), null, 2);
      } catch {
        // not JSON: as it came
      }
      shown.textContent = `${response.status} ${response.statusText}\n\n${pretty}`;
    } catch (error) {
      shown.textContent = error.message;
    }
  };
  const labelled = (input, text) => [make("label", { for: input.id }, text), input];
  return make("details", {}, make("summary", {}, "Try it"),
    ...fields.flatMap(({ parameter, input }) => labelled(input, `${parameter.name}${parameter.required ? "" : " (may be left out)"}`)),
    ...(body ? labelled(body, "Body") : []), ...(token ? labelled(token, "Token") : []),
    make("button", { type: "button", class: "push", onclick: send }, "Send"), shown);
}

function schema(document, content) {
  const found = content?.["application/json"]?.schema;
  const name = found?.$ref?.split("/").at(-1);
  return name ? { name, fields: document.components.schemas[name] } : null;
}

function fields(document, title, content) {
  const found = schema(document, content);
  if (!found?.fields?.properties) return null;
  const required = new Set(found.fields.required ?? []);
  const kind = (one) => one.$ref?.split("/").at(-1) ?? (one.anyOf ? one.anyOf.map(kind).join(" or ") : one.type === "array" ? `list of ${kind(one.items ?? {})}` : one.type ?? "anything");
  const rows = Object.entries(found.fields.properties).map(([name, one]) => {
    const limits = ["minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"].filter((limit) => one[limit] !== undefined).map((limit) => `${limit} ${one[limit]}`);
    const told = [one.description?.replace(/\.$/, ""), limits.join(", "), one.default === undefined || one.default === null ? "" : `default ${JSON.stringify(one.default)}`].filter(Boolean).join("; ");
    return make("li", {}, make("code", {}, name), ` ${kind(one)}${required.has(name) ? "" : ", may be left out"}${told ? `. ${told}` : ""}`);
  });
  return make("details", {}, make("summary", {}, `${title}: ${found.name}`), make("ul", {}, ...rows));
}

function described(document, path, method, operation) {
  return make("section", { class: "path" },
    make("h2", {}, make("span", { class: "verb" }, method.toUpperCase()), path),
    make("p", {}, operation.description ?? operation.summary ?? ""),
    fields(document, "Body", operation.requestBody?.content),
    fields(document, "Answer", operation.responses?.["200"]?.content),
    make("details", {}, make("summary", {}, "Status codes"), make("ul", {}, ...Object.entries(operation.responses).map(([code, one]) => make("li", {}, make("code", {}, code), ` ${one.description}`)))),
    tryIt(path, method, operation));
}

try {
  const document = await ask("/openapi.json");
  by("paths").append(...Object.entries(document.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => described(document, path, method, operation))));
} catch (error) {
  notice(`The interface could not be read: ${error.message}`);
}
