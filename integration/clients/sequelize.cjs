// Sequelize: sync, associations, bulk inserts, upserts, transactions, describe and altering by its query interface.
// Arguments: the URL of the database.
const assert = require("node:assert");
const { Sequelize, DataTypes, Op } = require("sequelize");

async function main() {
  const db = new Sequelize(process.argv[2], { dialect: "postgres", logging: false, pool: { max: 3 } });
  await db.authenticate();
  const User = db.define("User", {
    name: { type: DataTypes.STRING(50), allowNull: false, unique: true },
    age: DataTypes.INTEGER,
    token: { type: DataTypes.UUID, defaultValue: DataTypes.UUIDV4 },
    price: DataTypes.DECIMAL(10, 2),
    active: { type: DataTypes.BOOLEAN, defaultValue: true },
    doc: DataTypes.JSONB,
  });
  const Post = db.define("Post", { title: DataTypes.TEXT }, { indexes: [{ fields: ["title"] }] });
  User.hasMany(Post, { onDelete: "CASCADE" });
  Post.belongsTo(User);
  await db.sync({ force: true });
  await db.sync();
  const ada = await User.create({ name: "ada", age: 36, price: "1.50", doc: { a: 1 }, Posts: [{ title: "one" }, { title: "two" }] }, { include: Post });
  assert.strictEqual(ada.id, 1);
  const many = await User.bulkCreate([{ name: "bob", age: 41 }, { name: "carl" }]);
  assert.deepStrictEqual(many.map((u) => u.id), [2, 3]);
  const found = await User.findOne({ where: { name: "ada" }, include: Post, order: [[Post, "id", "ASC"]] });
  assert.deepStrictEqual(found.Posts.map((p) => p.title), ["one", "two"]);
  assert.strictEqual(found.price, "1.50");
  assert.deepStrictEqual(found.doc, { a: 1 });
  assert(found.createdAt instanceof Date && Math.abs(found.createdAt - Date.now()) < 3600e3, String(found.createdAt));
  assert.strictEqual(await User.count({ where: { id: { [Op.in]: [1, 2] }, name: { [Op.iLike]: "A%" } } }), 1);
  assert.strictEqual(await User.sum("age"), 77);
  await User.upsert({ name: "bob", age: 42 });
  assert.strictEqual((await User.findOne({ where: { name: "bob" } })).age, 42);
  await User.create({ name: "dora", age: 5 }); // findOrCreate makes a function in PL/pgSQL
  await User.increment("age", { by: 2, where: { name: "dora" } });
  await assert.rejects(User.create({ name: "ada" }), { name: "SequelizeUniqueConstraintError" });
  await assert.rejects(db.transaction(async (t) => { await User.destroy({ where: {}, transaction: t }); throw new Error("undo"); }), /undo/);
  assert.strictEqual(await User.count(), 4);
  const table = await db.getQueryInterface().describeTable("Users");
  assert(table.id.primaryKey && !table.name.allowNull, JSON.stringify(table));
  assert.deepStrictEqual((await db.getQueryInterface().showAllTables()).map((t) => t.tableName || t).sort(), ["Posts", "Users"]);
  const indexes = await db.getQueryInterface().showIndex("Posts");
  assert(indexes.some((i) => i.fields.some((f) => f.attribute === "title")), JSON.stringify(indexes));
  await db.getQueryInterface().addColumn("Posts", "stars", { type: DataTypes.INTEGER, defaultValue: 3 });
  await ada.destroy();
  assert.strictEqual(await Post.count(), 0);
  await db.drop();
  await db.close();
  console.log("ok");
}

main().catch((e) => { console.error(e); process.exit(1); });
