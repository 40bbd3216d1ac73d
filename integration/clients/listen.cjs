// Listens by node-pg: listen.cjs URL. Prints "ok" once every notification has come, in order, with the right sender.
const { Client } = require("pg");

const count = 50;

async function main(url) {
  const listener = new Client({ connectionString: url });
  const other = new Client({ connectionString: url });
  const heard = [];
  let wake = () => {};
  listener.on("notification", (n) => {
    heard.push(n);
    wake();
  });
  const next = async () => {
    while (heard.length === 0) await new Promise((resolve) => (wake = resolve));
    return heard.shift();
  };
  const want = (n, payload, own) => {
    if (n.channel !== "drivers" || n.payload !== payload || (n.processId === listener.processID) !== own) {
      throw new Error(`${JSON.stringify(n)}, want ${payload}`);
    }
  };
  await listener.connect();
  await other.connect();
  await listener.query("listen drivers");
  for (let i = 0; i < count; i++) {
    await other.query("select pg_notify('drivers', $1)", [`other${i}`]);
    want(await next(), `other${i}`, false);
    await listener.query(`notify drivers, 'own${i}'`);
    want(await next(), `own${i}`, true);
    await listener.query("begin");
    await listener.query("select $1::int", [i]);
    await listener.query("commit");
  }
  await listener.end();
  await other.end();
  console.log("ok");
}

main(process.argv[2]).catch((err) => {
  console.error(err);
  process.exit(1);
});
