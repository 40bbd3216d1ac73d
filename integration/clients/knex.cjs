// knex: migrations, the schema builder, inserts with returning, queries, transactions.
// Arguments: the URL of the database.
const assert = require("node:assert");

const steps = {
  one: {
    up: async (db) => {
      await db.schema.createTable("users", (t) => {
        t.increments("id");
        t.string("name", 60).notNullable();
        t.integer("age").defaultTo(0);
        t.decimal("price", 10, 2);
        t.boolean("active").defaultTo(true);
        t.uuid("token");
        t.jsonb("doc");
        t.timestamps(true, true);
        t.unique(["name"]);
      });
      await db.schema.createTable("posts", (t) => {
        t.bigIncrements("id");
        t.text("title").index();
        t.integer("user_id").references("id").inTable("users").onDelete("CASCADE");
      });
    },
    down: async (db) => { await db.schema.dropTable("posts"); await db.schema.dropTable("users"); },
  },
  two: {
    up: (db) => db.schema.alterTable("users", (t) => { t.string("email"); t.renameColumn("age", "years"); t.index(["email"], "users_email"); }),
    down: (db) => db.schema.alterTable("users", (t) => { t.dropIndex(["email"], "users_email"); t.dropColumn("email"); t.renameColumn("years", "age"); }),
  },
};

const migrationSource = {
  getMigrations: async () => Object.keys(steps),
  getMigrationName: (name) => name,
  getMigration: async (name) => steps[name],
};

async function main() {
  const db = require("knex")({ client: "pg", connection: process.argv[2], pool: { min: 0, max: 3 } });
  await db.migrate.latest({ migrationSource });
  assert.deepStrictEqual((await db.migrate.list({ migrationSource }))[0].length, 2);
  assert(await db.schema.hasTable("users") && !(await db.schema.hasTable("nothing")));
  assert(await db.schema.hasColumn("users", "email"));
  const info = await db("users").columnInfo();
  assert.strictEqual(info.name.nullable, false, JSON.stringify(info));
  const made = await db("users").insert([{ name: "ada", years: 36, price: "1.50", doc: { a: 1 } }, { name: "bob" }]).returning(["id", "name"]);
  assert.deepStrictEqual(made, [{ id: 1, name: "ada" }, { id: 2, name: "bob" }]);
  await db.batchInsert("posts", [{ title: "one", user_id: 1 }, { title: "two", user_id: 1 }], 1);
  const ada = await db("users").where({ name: "ada" }).first();
  assert.strictEqual(ada.price, "1.50");
  assert.deepStrictEqual(ada.doc, { a: 1 });
  assert.strictEqual(ada.active, true);
  assert(ada.created_at instanceof Date && Math.abs(ada.created_at - Date.now()) < 3600e3, String(ada.created_at));
  const rows = await db("users").leftJoin("posts", "posts.user_id", "users.id").whereIn("users.id", [1, 2])
    .groupBy("users.id", "users.name").select("users.name").count("posts.id as n").orderBy("users.name");
  assert.deepStrictEqual(rows.map((r) => [r.name, Number(r.n)]), [["ada", 2], ["bob", 0]]);
  await db("users").insert({ name: "ada", years: 37 }).onConflict("name").merge();
  assert.strictEqual((await db("users").where("name", "ada").first()).years, 37);
  await assert.rejects(db.transaction(async (trx) => { await trx("users").del(); throw new Error("undo"); }), /undo/);
  await db.transaction((trx) => trx("users").where("name", "bob").update({ active: false }));
  assert.strictEqual((await db("users").where("name", "bob").first()).active, false);
  await db("users").where("id", 1).del();
  assert.strictEqual((await db("posts")).length, 0);
  await db.migrate.rollback({ migrationSource }, true);
  assert(!(await db.schema.hasTable("users")));
  await db.destroy();
  console.log("ok");
}

main().catch((e) => { console.error(e); process.exit(1); });
