"use strict";
// Reads the OpenAPI document and makes a form of each operation. Everything from the document is set as
// text, never as HTML.

const source = document.currentScript.dataset.document;

function element(name, properties = {}, ...children) {
  const e = Object.assign(document.createElement(name), properties);
  e.append(...children);
  return e;
}

function resolve(api, schema) {
  while (schema && schema.$ref) {
    schema = schema.$ref.slice(2).split("/").reduce((at, key) => at[key.replaceAll("~1", "/").replaceAll("~0", "~")], api);
  }
  return schema || {};
}

// example makes a value of a schema.
function example(api, schema, depth = 0) {
  schema = resolve(api, schema);
  if (schema.default !== undefined) return schema.default;
  if (schema.examples) return schema.examples[0];
  if (schema.anyOf && !schema.type) return example(api, schema.anyOf[0], depth);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  switch (type) {
    case "object": {
      const value = {};
      if (depth < 4) for (const [name, of] of Object.entries(schema.properties || {})) value[name] = example(api, of, depth + 1);
      return value;
    }
    case "array": return depth < 4 ? [example(api, schema.items, depth + 1)] : [];
    case "integer": case "number": return schema.minimum ?? 0;
    case "boolean": return false;
    case "string": return { email: "someone@example.com", "date-time": new Date(0).toISOString(), uuid: "00000000-0000-4000-8000-000000000000", uri: "https://example.com/" }[schema.format] ?? "";
  }
  return null;
}

// hint says what a schema asks of a value.
function hint(schema) {
  if (schema.anyOf) schema = { ...schema, ...schema.anyOf[0] };
  const words = [Array.isArray(schema.type) ? schema.type[0] : schema.type, schema.format];
  for (const key of ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"]) if (schema[key] !== undefined) words.push(`${key} ${schema[key]}`);
  if (schema.enum) words.push(schema.enum.join(" | "));
  return words.filter(Boolean).join(", ");
}

function input(api, parameter) {
  const schema = resolve(api, parameter.schema);
  const field = element("input", { name: parameter.name, required: !!parameter.required, value: schema.default ?? "" });
  const label = element("label", {}, element("span", {}, parameter.name + (parameter.required ? " *" : ""), " ",
    element("span", { className: "hint" }, `${parameter.in}, ${hint(schema)}`)), field);
  return { label, field, parameter, many: schema.type === "array" };
}

// isUpload reports whether a form has files.
function isUpload(api, form) {
  const properties = Object.values((form && resolve(api, form.schema).properties) || {});
  return properties.some((of) => (of.items ? resolve(api, of.items) : of).format === "binary");
}

// upload makes inputs for a multipart form: its files, and its values.
function upload(api, schema) {
  const required = schema.required || [];
  return Object.entries(schema.properties || {}).map(([name, of]) => {
    of = resolve(api, of);
    const many = (Array.isArray(of.type) ? of.type[0] : of.type) === "array", item = many ? resolve(api, of.items) : of;
    const file = item.format === "binary";
    const field = element("input", { name, required: required.includes(name), type: file ? "file" : "text", multiple: file && many, value: file ? "" : of.default ?? "" });
    const label = element("label", {}, element("span", {}, name + (field.required ? " *" : ""), " ", element("span", { className: "hint" }, file ? "file" : hint(of))), field);
    return { label, field, many, name };
  });
}

// multipart makes the form; files come last, as handlers that stream them need it.
function multipart(fields) {
  const form = new FormData();
  for (const { field, many, name } of fields) {
    if (field.type !== "file" && field.value !== "") (many ? field.value.split(",") : [field.value]).forEach((v) => form.append(name, v.trim()));
  }
  for (const { field, name } of fields) for (const file of field.files || []) form.append(name, file);
  return form;
}

// request makes what fetch takes of a form.
function request(path, method, inputs, body, fields) {
  const query = new URLSearchParams(), headers = {};
  for (const { field, parameter, many } of inputs) {
    const value = field.value;
    if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value === "") continue;
    else if (parameter.in === "query") (many ? value.split(",") : [value]).forEach((v) => query.append(parameter.name, v.trim()));
    else if (parameter.in === "header") headers[parameter.name] = value;
    else if (parameter.in === "cookie") document.cookie = `${parameter.name}=${encodeURIComponent(value)}; path=/; samesite=strict`;
  }
  const authorization = document.getElementById("authorization").value;
  if (authorization) headers.Authorization = authorization;
  const options = { method: method.toUpperCase(), headers };
  if (body && body.value.trim() !== "") {
    headers["Content-Type"] = "application/json";
    options.body = body.value;
  }
  if (fields) options.body = multipart(fields);
  return [query.size ? `${path}?${query}` : path, options];
}

async function send(base, path, method, inputs, body, fields, out) {
  out.replaceChildren("…");
  try {
    const [url, options] = request(path, method, inputs, body, fields);
    const response = await fetch(base + url, options);
    let text = await response.text();
    try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON */ }
    const headers = [...response.headers].map(([k, v]) => `${k}: ${v}`).join("\n");
    out.replaceChildren(
      element("p", { className: response.ok ? "good" : "bad" }, `${response.status} ${response.statusText} `, element("code", {}, `${options.method} ${url}`)),
      element("pre", {}, headers + "\n\n" + text));
  } catch (error) {
    out.replaceChildren(element("p", { className: "bad" }, String(error)));
  }
}

function operation(api, path, method, op) {
  const base = (api.servers && api.servers[0].url) || "";
  const inputs = (op.parameters || []).map((p) => input(api, p));
  const types = (op.requestBody && op.requestBody.content) || {};
  const parts = isUpload(api, types["multipart/form-data"]) || !types["application/json"] ? types["multipart/form-data"] : undefined;
  const fields = parts && upload(api, resolve(api, parts.schema));
  const content = !fields && types["application/json"];
  const body = content && element("textarea", { name: "body", spellcheck: false, value: JSON.stringify(example(api, content.schema), null, 2) });
  const out = element("div", { ariaLive: "polite" });
  const form = element("form", {}, op.description || "", ...inputs.map((i) => i.label));
  if (body) form.append(element("label", { className: "body" }, "Body", body));
  if (fields) form.append(...fields.map((f) => f.label));
  form.append(element("button", {}, "Send"), out);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(base, path, method, inputs, body, fields, out);
  });
  return element("details", { id: op.operationId },
    element("summary", {}, element("span", { className: "method" }, method.toUpperCase()), element("code", {}, path), " ", op.summary || ""), form);
}

async function main() {
  const api = await (await fetch(source)).json();
  document.title = api.info.title;
  document.getElementById("title").textContent = `${api.info.title} ${api.info.version}`;
  document.getElementById("about").textContent = api.info.description || "";
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, op] of Object.entries(item)) {
      const tag = (op.tags && op.tags[0]) || "";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(api, path, method, op));
    }
  }
  const all = [];
  for (const [tag, list] of groups) all.push(...(tag ? [element("h2", {}, tag)] : []), ...list);
  document.getElementById("operations").replaceChildren(...all);
}

main().catch((error) => { document.getElementById("operations").textContent = String(error); });
