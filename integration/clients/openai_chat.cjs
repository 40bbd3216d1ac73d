// Asks models through the gateway with the client of OpenAI, and prints what it sees: openai_chat.cjs ADDRESS.
const OpenAI = require("openai");

const address = process.argv[2];
const options = { apiKey: "secret", maxRetries: 0, timeout: 60_000 };
const client = new OpenAI({ baseURL: `http://${address}/v1`, ...options });
const service = new OpenAI({ baseURL: `http://${address}/v1/service/llm/v1`, ...options });

const user = (content) => [{ role: "user", content }];
const whole = (c, model, text, ...more) => c.chat.completions.create({ model, messages: user(text) }, ...more);
const streamed = (c, model, text, more) => c.chat.completions.create({ model, messages: user(text), stream: true, ...more });
const textOf = (chunk) => chunk.choices[0]?.delta.content ?? "";
const print = (...words) => console.log(words.join(" "));

async function fails(what, c, model, text, stream = false) {
  try {
    const answer = await c.chat.completions.create({ model, messages: user(text), stream });
    if (stream) for await (const chunk of answer) print("before", textOf(chunk));
  } catch (e) {
    if (e instanceof OpenAI.APIError && e.status) print(what, e.constructor.name, e.status, e.error?.message ?? "of the gateway");
    else if (e instanceof OpenAI.APIError) print(what, e.constructor.name, e.error?.message ?? e.message);
    else print(what, e.constructor.name, e.message); // the transport's: the connection broke off
  }
}

async function main() {
  const models = [];
  for await (const m of client.models.list()) models.push(m.id);
  print("models", ...models);

  for (const model of ["llama3", "qwen3"]) {
    const answer = await whole(client, model, "who are you");
    print("whole", answer.choices[0].message.content, answer.usage.total_tokens);
    let said = "";
    for await (const chunk of await streamed(client, model, "who are you")) said += textOf(chunk);
    print("streamed", said);
  }

  // The model is named behind more than one buffer of the gateway.
  const long = await client.chat.completions.create({ messages: user("count " + "x ".repeat(100_000)), model: "llama3" });
  print("long", long.choices[0].message.content);

  // The model says the next word only once this client has the last one.
  const words = [];
  for await (const chunk of await streamed(client, "llama3", "hold node")) {
    if (!textOf(chunk)) continue;
    words.push(textOf(chunk));
    await whole(client, "llama3", "release node");
  }
  print("held", ...words);

  const usage = [];
  for await (const c of await streamed(client, "qwen3", "a b", { stream_options: { include_usage: true } })) if (c.usage) usage.push(c.usage.total_tokens);
  print("usage", ...usage);

  let n = 0;
  for await (const _ of await streamed(client, "llama3", "endless")) if (n++ === 2) break;
  print("canceled");

  let raw = await whole(service, "unknown", "who are you", { headers: { "X-Headpond-Fallback": "1" } }).withResponse();
  print("fallback", raw.response.headers.get("X-Computing-Node"), raw.data.choices[0].message.content);
  raw = await whole(service, "llama3", "who are you", { headers: { "X-Otela-Fallback": "2" } }).withResponse();
  print("exact", raw.response.headers.get("X-Computing-Node"), raw.data.choices[0].message.content);

  await fails("limit", client, "llama3", "limit");
  await fails("limit", client, "llama3", "limit", true);
  await fails("error", client, "qwen3", "error");
  await fails("middle", client, "llama3", "middle", true);
  await fails("broken", client, "llama3", "broken", true);
  const limited = new OpenAI({ baseURL: `http://${address}/limited/v1`, ...options, apiKey: "node" });
  raw = await whole(limited, "qwen3", "who are you").withResponse();
  print("tokens", raw.response.headers.get("x-ratelimit-limit-tokens"), raw.response.headers.get("x-ratelimit-remaining-tokens"));
  await fails("tokens", limited, "qwen3", "again", true);
  const keyed = (apiKey) => new OpenAI({ baseURL: `http://${address}/keyed/v1`, ...options, apiKey });
  print("key", (await whole(keyed("right"), "qwen3", "who are you")).choices[0].message.content);
  await fails("key", keyed("wrong"), "qwen3", "who are you");
  const budget = new OpenAI({ baseURL: `http://${address}/budget/v1`, ...options, apiKey: "of node" });
  raw = await whole(budget, "qwen3", "who are you").withResponse();
  print("budget", raw.response.headers.get("x-ratelimit-limit-tokens"), raw.response.headers.get("x-ratelimit-remaining-tokens"));
  await fails("budget", budget, "qwen3", "again");
  await fails("no model", client, "unknown", "who are you");
  await fails("no fallback", service, "unknown", "who are you", true);
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
