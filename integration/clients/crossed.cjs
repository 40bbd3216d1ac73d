// Clients that check that each answer is their own; see crossed.py. node-postgres leaves COPY to programs like this one; its queries are
// a pipeline when nobody waits in between. Arguments: the URL of the database, clients, operations of each, "calm" or "killed".
const { Client } = require("pg");

const [url, clients, operations, mode] = [process.argv[2], +process.argv[3], +process.argv[4], process.argv[5]];
const PATIENCE = 60e3;
let done = 0, lost = 0;

class Crossed extends Error {}

function check(got, want) {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Crossed(`got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

async function expect(state, promise) {
  try {
    await promise;
  } catch (e) {
    if (e.code === state) return;
    throw e;
  }
  throw new Crossed(`no error ${state}`);
}

async function connect() {
  const c = new Client({ connectionString: url });
  c.on("error", () => {}); // the next query tells
  await c.connect();
  return c;
}

const rows = async (c, text, values, name) => (await c.query({ text, values, name, rowMode: "array" })).rows;

// Copy is a COPY in either direction, as a query of node-postgres.
class Copy {
  constructor(text, data) {
    Object.assign(this, { text, data, out: "" });
    this.end = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }
  submit(connection) { connection.query(this.text); }
  handleCopyInResponse(connection) {
    for (const row of this.data) connection.sendCopyFromChunk(Buffer.from(row));
    connection.endCopyFrom();
  }
  handleCopyData(message) { this.out += message.chunk; }
  handleCommandComplete() {}
  handleError(e) { this.reject(e); }
  handleReadyForQuery() { this.resolve(this.out); }
}

const can = {
  async ask(c, tag) {
    check(await rows(c, "select $1::text, g from generate_series(1, 3) g", [tag]), [[tag, 1], [tag, 2], [tag, 3]]);
  },
  async askByName(c, tag) {
    check(await rows(c, "select $1::text || ''", [tag], "by-name"), [[tag]]);
  },
  async askSimply(c, tag) {
    check(await rows(c, `select '${tag}'`), [[tag]]);
  },
  async transaction(c, tag) {
    await c.query("begin");
    await c.query("insert into crossed values ($1, 1)", [tag]);
    check(await rows(c, "select tag from crossed where tag = $1", [tag]), [[tag]]);
    await c.query("commit");
  },
  async fail(c, tag) {
    await expect("22012", rows(c, "select $1::text || (1 / 0)", [tag]));
    await can.ask(c, tag);
  },
  async failInTransaction(c, tag) {
    await c.query("begin");
    await c.query("insert into crossed values ($1, 2)", [tag]);
    await expect("22012", c.query("select 1 / 0"));
    await c.query("rollback");
    check(await rows(c, "select count(*)::int from crossed where tag = $1", [tag]), [[0]]);
  },
  async cancel(c, tag) {
    const { Query } = require("pg");
    let ended = false, asked = Promise.resolve();
    const slept = expect("57014", new Promise((resolve, reject) => {
      const query = c.query(new Query("select pg_sleep(20)"));
      query.on("end", resolve);
      query.on("error", reject);
      const again = () => {
        if (ended) return;
        asked = new Promise((resolve) => {
          const other = new Client({ connectionString: url });
          other.on("error", () => {});
          other.connection.on("error", () => {});
          other.connection.stream.on("close", resolve);
          other.cancel(c, query);
        });
        asked.then(() => setTimeout(again, 20));
      };
      setTimeout(again, 20);
    })).finally(() => { ended = true; });
    await slept;
    await asked; // a request that comes later would cancel what follows
    await can.ask(c, tag);
  },
  async copy(c, tag) {
    const data = Array.from({ length: 50 }, (_, n) => `${tag}\t${n}\n`);
    await c.query(new Copy("copy crossed from stdin", data)).end;
    check(await c.query(new Copy(`copy (select tag, n from crossed where tag = '${tag}' order by n) to stdout`)).end, data.join(""));
  },
  async pipeline(c, tag) {
    const answers = await Promise.all([0, 1, 2, 3, 4].map((n) => rows(c, "select $1::text, $2::int", [tag, n])));
    check(answers, [0, 1, 2, 3, 4].map((n) => [[tag, n]]));
  },
};

async function client(number) {
  let c = null;
  const names = [...Object.keys(can), "disconnect"];
  for (let n = 0; n < operations; n++) {
    const name = names[(number * 7 + n * 3) % names.length];
    const tag = `${number}.${n}.${name}`;
    let timer;
    const patience = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error("stuck")), PATIENCE); });
    try {
      c ??= await Promise.race([connect(), patience]);
      if (name === "disconnect") {
        c.query(`select '${tag}' from generate_series(1, 100000)`).catch(() => {});
        c.connection.stream.destroy();
        c = null;
      } else {
        await Promise.race([can[name](c, tag), patience]);
      }
    } catch (e) {
      if (e instanceof Crossed) {
        console.log("crossed", tag, e.message);
      } else if (e.message === "stuck") {
        console.log("stuck", tag);
      } else {
        lost++;
        if (mode === "calm") console.log("wrong", tag, e.code, e.message);
      }
      c?.connection?.stream?.destroy();
      c = null;
    } finally {
      clearTimeout(timer);
    }
    done++;
  }
  c?.connection.stream.destroy();
}

Promise.all(Array.from({ length: clients }, (_, n) => client(n))).then(() => {
  console.log("done", done, lost);
  process.exit(0); // whatever sockets are left
});
