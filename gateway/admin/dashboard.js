
"use strict";
// Every value reaches the page as text (textContent, or a number in a style or a point list), never as markup.

const SAMPLES = 90; // seconds of history in a sparkline
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function setText(e, text) {
  if (e.textContent !== String(text)) e.textContent = text;
}

function setTag(e, kind, text) {
  e.className = "tag " + kind;
  setText(e, text);
}

// numbers keeps a list of "label, value" pairs and returns a function that updates them.
function numbers(list, labels) {
  const values = labels.map((label) => {
    const pair = element("div");
    const value = element("dd", "", "–");
    pair.append(element("dt", "", label), value);
    list.append(pair);
    return value;
  });
  return (...texts) => texts.forEach((t, i) => setText(values[i], t));
}

// short writes a number of less than 10000 with three digits, more only before the point.
const short = (n) => n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0);

function count(n) {
  if (n < 10000) return String(n);
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, unit] = units.find(([s]) => n >= s);
  return short(n / size) + " " + unit;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i === 0 ? n : short(n)) + " " + units[i];
}

// duration writes an upper bound as people do: 520 ms, 1.05 s.
function duration(seconds) {
  if (seconds === 0) return "–";
  const [size, unit] = seconds < 1e-3 ? [1e-6, "µs"] : seconds < 1 ? [1e-3, "ms"] : [1, "s"];
  const n = seconds / size;
  return "≤ " + (n < 10 ? String(Number(n.toPrecision(2))) : Math.round(n)) + " " + unit;
}

function uptime(s) {
  s = Math.max(0, Math.floor(s));
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  if (d > 0) return d + " d " + h + " h";
  if (h > 0) return h + " h " + m + " min";
  if (m > 0) return m + " min " + (s % 60) + " s";
  return s + " s";
}

const percent = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(part === whole ? 0 : 1) + " %" : "–");

// rates makes rates per second of counters from one answer to the next: null at first, and where a counter began anew.
function rates() {
  let last = null;
  return (...counters) => {
    const before = last, at = performance.now();
    last = { at, counters };
    const rate = (n, i) => (!before || n < before.counters[i] || at <= before.at ? null : (1000 * (n - before.counters[i])) / (at - before.at));
    return counters.map(rate);
  };
}

const perSecond = (rate, written) => (rate === null ? "–" : written(rate) + "/s");
const rounded = (n) => bytes(Math.round(n));
const decimal = (n) => (n < 10 ? String(Number(n.toFixed(1))) : count(Math.round(n)));

// reuse leaves out connections that are never used twice, as TCP's: the next client would see the last one's bytes.
function reuse(pools) {
  const counted = pools.filter((p) => p.reuses);
  const sum = (pick) => counted.reduce((total, p) => total + pick(p), 0);
  return percent(sum((p) => p.reused), sum((p) => p.acquired));
}

// keep makes the children of parent match items: it creates what is new, removes what is gone and returns the views in order.
function keep(parent, views, items, keyOf, create) {
  const seen = new Set();
  const out = items.map((item) => {
    const key = keyOf(item);
    seen.add(key);
    if (!views.has(key)) {
      views.set(key, create(item));
      parent.append(views.get(key).root);
    }
    return views.get(key);
  });
  for (const [key, view] of views) {
    if (!seen.has(key)) { view.root.remove(); views.delete(key); }
  }
  return out;
}

function sparkline(label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 " + (SAMPLES - 1) + " 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const area = document.createElementNS(SVG, "polygon");
  const line = document.createElementNS(SVG, "polyline");
  svg.append(area, line);
  const history = [];
  return {
    root: svg,
    add(value) {
      history.push(value);
      if (history.length > SAMPLES) history.shift();
      const top = Math.max(1, ...history);
      const from = SAMPLES - history.length;
      const points = history.map((v, i) => (from + i) + "," + (29 - (27 * v) / top).toFixed(2));
      line.setAttribute("points", points.join(" "));
      area.setAttribute("points", from + ",30 " + points.join(" ") + " " + (SAMPLES - 1) + ",30");
    },
  };
}

// place says what is not the default about an endpoint.
function place(e) {
  const parts = [];
  if (e.role) parts.push(e.role === "unknown" ? "role unknown" : e.role);
  if (e.weight > 1) parts.push("weight " + e.weight);
  if (e.priority > 0) parts.push("priority " + e.priority);
  if (e.zone) parts.push("zone " + e.zone);
  if (e.override) parts.push((e.override === "weight" ? "its weight" : e.override) + " by an operator, " + (e.kept ? "kept over reloads" : "until the next reload"));
  return parts.join(", ");
}

// found says where the endpoints of an upstream come from, and since when its source fails.
function found(source) {
  if (!source) return "";
  if (!source.failing_since) return "found by " + source.name;
  return "found by " + source.name + ", which fails since " + uptime((Date.now() - Date.parse(source.failing_since)) / 1000) + ": " + source.last_error;
}

function poolCard() {
  const root = element("article", "card");
  const head = element("div", "row");
  const name = element("h4"), health = element("span", "tag");
  head.append(name, health);
  const spark = sparkline("connections in use during the last 90 seconds");
  const bar = element("div", "bar"), used = element("span", "used"), idle = element("span", "idle");
  bar.append(used, idle);
  const list = element("dl", "numbers");
  const set = numbers(list, ["in use", "idle", "kept ready", "waiting", "max", "acquired", "reuse", "opened", "reused", "failed", "p50", "p99"]);
  const about = element("p", "quiet"), error = element("p", "error"), rate = rates();
  root.append(head, about, spark.root, bar, list, error);
  return {
    root,
    update(e) {
      const p = e.pool;
      setText(name, e.address);
      setText(about, place(e));
      about.hidden = !about.textContent;
      setTag(health, { healthy: "good", unhealthy: "bad" }[e.state] || "warn", e.state);
      spark.add(p.in_use + p.direct);
      const size = Math.max(1, p.max_size);
      used.style.width = Math.min(100, (100 * p.in_use) / size) + "%";
      idle.style.width = Math.min(100, (100 * p.idle) / size) + "%";
      const [acquired] = rate(p.acquired);
      set(count(p.in_use + p.direct), count(p.idle), count(p.warm_target), count(p.waiting), count(p.max_size), perSecond(acquired, decimal), reuse([p]),
        count(p.opened), count(p.reused), count(p.open_failed), duration(p.acquire_seconds.p50), duration(p.acquire_seconds.p99));
      const wrong = e.state !== "healthy" && e.state !== "drained"; // else it may be over, and nobody has opened a connection since
      const why = (wrong && e.last_error) || p.last_open_error;
      error.className = wrong ? "error" : "quiet";
      setText(error, why && !wrong ? "the last connection to be opened failed: " + why : why);
      error.hidden = !why;
    },
  };
}

function upstreamView() {
  const root = element("div", "upstream");
  const head = element("div", "row");
  const name = element("h3"), protocol = element("span", "tag"), about = element("span", "quiet"), waiting = element("span", "tag warn"), open = element("span", "tag warn", "every endpoint is out"), none = element("span", "tag bad", "no endpoint has the role");
  head.append(name, protocol, about, waiting, open, none);
  const source = element("p", "quiet"), grid = element("div", "grid");
  root.append(head, source, grid);
  const cards = new Map();
  return {
    root,
    update(u) {
      setText(name, u.name);
      setText(protocol, u.protocol);
      const file = u.endpoints.some((e) => e.address.startsWith("sqlite:"));
      setText(about, file || u.endpoints.length === 1 ? "" : u.balance + " over " + u.endpoints.length + " endpoints" + (u.target === "any" ? "" : ", target " + u.target));
      setText(waiting, u.waiting + " waiting");
      waiting.hidden = !u.waiting;
      open.hidden = !u.fail_open;
      none.hidden = !u.no_role;
      source.className = u.source && u.source.failing_since ? "error" : "quiet";
      setText(source, found(u.source));
      source.hidden = !u.source;
      root.classList.toggle("wide", u.endpoints.length > 1);
      keep(grid, cards, u.endpoints, (e) => e.address, poolCard).forEach((card, i) => card.update(u.endpoints[i]));
    },
  };
}

// lastMinute writes what a listener did in the last minute; nothing if its protocol counts sessions only.
function lastMinute(m) {
  return m ? [perSecond(m.per_second, decimal), percent(m.failed, m.done), duration(m.seconds.p50), duration(m.seconds.p99)] : [];
}

function listenerCard(first) {
  const root = element("article", "card");
  const head = element("div", "row");
  const name = element("h4"), protocol = element("span", "tag");
  head.append(name, protocol);
  const address = element("p", "quiet");
  const list = element("dl", "numbers");
  const set = numbers(list, ["sessions", "queued", "accepted", "rejected", "gone", "errors", "in", "out", "max", "new sessions", "errors now", "in now", "out now"]
    .concat(first.protocol === "tcp" ? ["moved", "moves refused", "rebalanced"] : [])
    .concat(first.last_minute ? [first.last_minute.unit, "failed", "p50", "p99"] : []));
  const error = element("p", "quiet"), rate = rates();
  root.append(head, address, list, error);
  return {
    root,
    update(l) {
      setText(name, l.name);
      if (l.draining) setTag(protocol, "warn", "draining");
      else setTag(protocol, "", l.protocol);
      setText(address, l.address);
      const errors = Object.entries(l.errors).filter(([, n]) => n > 0);
      const total = errors.reduce((sum, [, n]) => sum + n, 0);
      const [accepted, failed, received, sent] = rate(l.accepted, total, l.bytes_in, l.bytes_out);
      set(count(l.active), count(l.queued), count(l.accepted), count(l.rejected), count(l.gone), count(total), bytes(l.bytes_in), bytes(l.bytes_out), count(l.max_conns),
        perSecond(accepted, decimal), perSecond(failed, decimal), perSecond(received, rounded), perSecond(sent, rounded),
        ...(l.protocol === "tcp" ? [count(l.moved), count(l.moves_refused), count(l.errors.rebalanced || 0)] : []), ...lastMinute(l.last_minute));
      setText(error, errors.map(([reason, n]) => reason + " " + count(n)).join(", "));
    },
  };
}

// rowCard shows a row of an extension's table: the first column is its name, the others go where their formats belong.
function rowCard(columns) {
  const written = { count, bytes, seconds: duration };
  const places = (format) => columns.flatMap((c, i) => (i > 0 && c.format === format ? [i] : []));
  const values = columns.flatMap((c, i) => (written[c.format] ? [i] : []));
  const root = element("article", "card");
  const head = element("div", "row");
  const name = element("h4"), tags = places("state").map(() => element("span", "tag"));
  head.append(name, ...tags);
  const about = element("p", "quiet");
  const list = element("dl", "numbers");
  const set = numbers(list, values.map((i) => columns[i].title));
  const error = element("p", "error");
  root.append(head, about, list, error);
  const texts = (row, format) => places(format).map((i) => row[i].text || "").filter((t) => t !== "");
  return {
    root,
    update(row) {
      setText(name, row[0].text || "");
      places("state").forEach((i, k) => setTag(tags[k], row[i].level || "", row[i].text || ""));
      setText(about, texts(row, "text").join(", "));
      set(...values.map((i) => written[columns[i].format](row[i].number || 0)));
      const wrong = texts(row, "error").join("; ");
      setText(error, wrong);
      error.hidden = !wrong;
    },
  };
}

// MOST_ROWS bounds the cards of a table, which may have a thousand rows.
const MOST_ROWS = 60;

function tableSection(table) {
  const root = element("section"), grid = element("div", "grid"), more = element("p", "quiet");
  const title = element("h2", "", table.title);
  title.id = "table-" + table.key;
  root.setAttribute("aria-labelledby", title.id);
  root.append(title, grid, more);
  const cards = new Map();
  return {
    root,
    update(t) {
      root.hidden = t.rows.length === 0;
      const rows = t.rows.slice(0, MOST_ROWS);
      keep(grid, cards, rows.map((row, i) => i), (i) => i, () => rowCard(t.columns)).forEach((card, i) => card.update(rows[i]));
      setText(more, "the first " + rows.length + " of " + count(t.rows.length) + "; headpond ctl status lists all");
      more.hidden = rows.length === t.rows.length;
    },
  };
}

function retiringCard() {
  const root = element("article", "card");
  const head = element("div", "row");
  const name = element("h4");
  head.append(name, element("span", "tag warn", "draining"));
  const kind = element("p", "quiet");
  const list = element("dl", "numbers");
  const set = numbers(list, ["active", "for"]);
  root.append(head, kind, list);
  return {
    root,
    update(r) {
      setText(name, r.name);
      setText(kind, r.kind + (r.kind === r.protocol ? "" : ", " + r.protocol));
      set(count(r.active), uptime((Date.now() - Date.parse(r.since)) / 1000));
    },
  };
}

// who is what a session is known by in its protocol, as in headpond ctl clients.
function who(s) {
  if (s.user && s.host && !s.method) return s.user + " to " + s.host;
  if (s.user) return (s.user + "@" + s.database + " " + s.application).trim();
  if (s.method) return s.method + " " + s.host + s.path;
  return s.streams > 0 ? "HTTP/2, streams: " + s.streams : "–";
}

// clip bounds a client's text.
const clip = (text) => (text.length > 160 ? text.slice(0, 160) + "…" : text);

function sessionRow() {
  const root = element("tr");
  const cell = (column, ...children) => {
    const td = element("td");
    td.dataset.column = column;
    td.append(...children);
    root.append(td);
  };
  const id = element("div"), listener = element("div", "quiet"), client = element("div");
  const what = element("div"), statement = element("div", "quiet");
  const state = element("span", "tag"), since = element("div", "quiet");
  const holds = element("div"), held = element("div", "quiet");
  cell("session", id, listener);
  cell("client", client);
  cell("who or what", what, statement);
  cell("state", state, since);
  cell("holds", holds, held);
  const kinds = { active: "good", queued: "warn", waiting: "warn", "idle in transaction": "warn", pinned: "warn" };
  return {
    root,
    update(s) {
      setText(id, s.id);
      setText(listener, s.listener);
      setText(client, s.client);
      setText(what, clip(who(s)));
      setText(statement, clip(s.statement));
      setTag(state, kinds[s.state] || "", s.state);
      if (state.title !== s.pinned) state.title = s.pinned;
      setText(since, (s.draining ? "drains, " : "") + "for " + uptime(s.state_seconds));
      const pid = s.server_pid ? " pid " + s.server_pid : "";
      setText(holds, s.held_since ? s.endpoint + pid : s.upstream ? "none of " + s.upstream : "–");
      setText(held, s.held_since ? s.upstream + ", for " + uptime(s.held_seconds) : "");
    },
  };
}

function showSessions(list) {
  byId("sessions-section").hidden = false;
  const shown = list.sessions.length;
  byId("sessions-table").hidden = shown === 0;
  setText(byId("sessions-shown"), shown === 0 ? "none" : shown < list.total ?
    `${shown} of ${list.total}: the longest holders of connections, then those longest in their state; headpond ctl clients lists more` : "");
  keep(byId("sessions"), sessions, list.sessions.map((s, i) => i), (i) => i, sessionRow).forEach((row, i) => row.update(list.sessions[i]));
}

const upstreams = new Map(), listeners = new Map(), sessions = new Map(), tables = new Map(), retiring = new Map();
function engine(s) {
  const e = s.engine_stats, why = s.engine_reason ? ` (${s.engine_reason})` : "";
  if (!e.loops) return s.engine + why;
  const trouble = e.panics || e.held ? `, panics: ${e.panics}, times held: ${e.held}` : "";
  return `${s.engine}, ${e.loops} ${e.loops > 1 ? "loops" : "loop"}${trouble}${why}`;
}

const setFacts = numbers(byId("facts"), ["version", "up", "engine", "config"]);
const setTotals = numbers(byId("totals"), ["sessions", "connections in use", "idle", "waiting", "reuse"]);

function showState(s) {
  const state = byId("state");
  if (s.draining) setTag(state, "warn", "draining");
  else if (!s.ready) setTag(state, "bad", "not ready");
  else setTag(state, "good", "ready");
  const notes = s.not_ready.concat(s.trouble);
  const notice = byId("notice");
  setText(notice, notes.join("\n"));
  notice.hidden = notes.length === 0;
  setText(byId("sizing"), s.sizing.join("\n"));
  byId("sizing").hidden = s.sizing.length === 0;
}

function show(s) {
  showState(s);
  setFacts(s.version, uptime(s.uptime_seconds), engine(s), s.config_file || "–");
  const pools = s.upstreams.flatMap((u) => u.endpoints.map((e) => e.pool));
  const sum = (list, pick) => list.reduce((total, x) => total + pick(x), 0);
  setTotals(count(sum(s.listeners, (l) => l.active)), count(sum(pools, (p) => p.in_use + p.direct)), count(sum(pools, (p) => p.idle)),
    count(sum(pools, (p) => p.waiting) + sum(s.upstreams, (u) => u.waiting)), reuse(pools));
  byId("pools-section").hidden = s.upstreams.length + s.sizing.length === 0;
  keep(byId("upstreams"), upstreams, s.upstreams, (u) => u.name, upstreamView).forEach((v, i) => v.update(s.upstreams[i]));
  byId("retiring-section").hidden = s.retiring.length === 0;
  keep(byId("retiring"), retiring, s.retiring, (r) => r.kind + r.name + r.since, retiringCard).forEach((v, i) => v.update(s.retiring[i]));
  keep(byId("tables"), tables, s.tables, (t) => t.key, tableSection).forEach((v, i) => v.update(s.tables[i]));
  keep(byId("listeners"), listeners, s.listeners, (l) => l.name, listenerCard).forEach((v, i) => v.update(s.listeners[i]));
}

// ask returns the body of an answer; null: there is no such page.
async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error("status " + answer.status);
  return answer.json();
}

// Listing sessions costs the gateway time for each that it has: with many the list is asked for less often.
const SESSIONS_A_SECOND = 10000;
let skip = 0; // polls without sessions

async function poll() {
  if (!document.hidden) {
    try {
      show(await ask("/api/v1/status"));
      const list = skip > 0 ? null : await ask("/api/v1/sessions?limit=20");
      skip = list ? Math.floor(list.total / SESSIONS_A_SECOND) : Math.max(skip - 1, 0);
      if (list) showSessions(list);
    } catch (err) {
      setTag(byId("state"), "bad", "no answer");
    }
  }
  setTimeout(poll, 1000);
}
poll();
