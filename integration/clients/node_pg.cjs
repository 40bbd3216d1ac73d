// node-postgres with a pool: types, parameters, arrays, transactions, errors.
// Arguments: the URL of the database.
const assert = require("node:assert");
const { Pool } = require("pg");

async function main() {
  const pool = new Pool({ connectionString: process.argv[2], max: 3 });
  await pool.query("create table users (id serial primary key, name text not null unique, age integer, big bigint, ok boolean, at timestamptz default now(), doc jsonb)");
  const made = await pool.query("insert into users (name, age, big, ok, doc) values ($1, $2, $3, $4, $5), ($6, $7, default, default, default) returning *",
    ["ada", 36, "9007199254740993", true, { a: [1] }, "bob", 41]);
  assert.strictEqual(made.rowCount, 2);
  const ada = made.rows[0];
  assert.strictEqual(ada.id, 1); // a number
  assert.strictEqual(ada.age, 36);
  assert.strictEqual(ada.big, "9007199254740993");
  assert.strictEqual(ada.ok, true);
  assert.deepStrictEqual(ada.doc, { a: [1] });
  assert(ada.at instanceof Date && Math.abs(ada.at - Date.now()) < 3600e3, String(ada.at));
  assert.strictEqual(made.rows[1].ok, null);
  const any = await pool.query("select name from users where id = any($1) order by id", [[1, 2, 7]]);
  assert.deepStrictEqual(any.rows, [{ name: "ada" }, { name: "bob" }]);
  const ints = await pool.query("select name from users where age = any($1::int[])", [[41]]);
  assert.deepStrictEqual(ints.rows, [{ name: "bob" }]);
  const named = { name: "by-name", text: "select id from users where name = $1" };
  for (const name of ["ada", "bob", "ada"]) {
    assert.strictEqual((await pool.query({ ...named, values: [name] })).rows.length, 1);
  }
  await assert.rejects(pool.query("insert into users (name) values ('ada')"), { code: "23505" });
  const client = await pool.connect();
  await client.query("begin");
  await client.query("delete from users");
  await client.query("rollback");
  client.release();
  const counts = await Promise.all(Array.from({ length: 10 }, () => pool.query("select count(*)::int as n from users")));
  assert(counts.every((c) => c.rows[0].n === 2));
  await pool.end();
  console.log("ok");
}

main().catch((e) => { console.error(e); process.exit(1); });
