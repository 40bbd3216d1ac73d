"""Asks models through the gateway with the client of OpenAI, and prints what it sees: openai_chat.py ADDRESS."""

import sys

import openai

address = sys.argv[1]
options = {"api_key": "secret", "max_retries": 0, "timeout": 60}
client = openai.OpenAI(base_url=f"http://{address}/v1", **options)
service = openai.OpenAI(base_url=f"http://{address}/v1/service/llm/v1", **options)


def user(text):
    return [{"role": "user", "content": text}]


def whole(c, model, text):
    return c.chat.completions.create(model=model, messages=user(text))


def streamed(c, model, text, **more):
    return c.chat.completions.create(model=model, messages=user(text), stream=True, **more)


def text_of(chunk):
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def fails(what, c, model, text, stream=False):
    try:
        answer = c.chat.completions.create(model=model, messages=user(text), stream=stream)
        if stream:
            for chunk in answer:
                print("before", text_of(chunk))
    except openai.APIStatusError as e:
        print(what, type(e).__name__, e.status_code, e.body["message"] if isinstance(e.body, dict) else "of the gateway")
    except openai.APIError as e:
        print(what, type(e).__name__, e.message)
    except Exception as e:  # the transport's: the connection broke off
        print(what, type(e).__module__, type(e).__name__, e)


print("models", *(m.id for m in client.models.list()))

for model in "llama3", "qwen3":
    answer = whole(client, model, "who are you")
    print("whole", answer.choices[0].message.content, answer.usage.total_tokens)
    print("streamed", "".join(text_of(chunk) for chunk in streamed(client, model, "who are you")))

# The model is named behind more than one buffer of the gateway.
answer = client.chat.completions.create(messages=user("count " + "x " * 100_000), model="llama3")
print("long", answer.choices[0].message.content)

# The model says the next word only once this client has the last one.
words = []
for chunk in streamed(client, "llama3", "hold python"):
    if text_of(chunk):
        words.append(text_of(chunk))
        whole(client, "llama3", "release python")
print("held", *words)

usage = [c.usage.total_tokens for c in streamed(client, "qwen3", "a b", stream_options={"include_usage": True}) if c.usage]
print("usage", *usage)

with streamed(client, "llama3", "endless") as endless:
    for n, chunk in enumerate(endless):
        if n == 2:
            break
print("canceled")

create = service.chat.completions.with_raw_response.create
raw = create(model="unknown", messages=user("who are you"), extra_headers={"X-Headpond-Fallback": "1"})
print("fallback", raw.headers["X-Computing-Node"], raw.parse().choices[0].message.content)
raw = create(model="llama3", messages=user("who are you"), extra_headers={"X-Otela-Fallback": "2"})
print("exact", raw.headers["X-Computing-Node"], raw.parse().choices[0].message.content)

fails("limit", client, "llama3", "limit")
fails("limit", client, "llama3", "limit", stream=True)
fails("error", client, "qwen3", "error")
fails("middle", client, "llama3", "middle", stream=True)
fails("broken", client, "llama3", "broken", stream=True)
limited = openai.OpenAI(base_url=f"http://{address}/limited/v1", **{**options, "api_key": "python"})
raw = limited.chat.completions.with_raw_response.create(model="qwen3", messages=user("who are you"))
print("tokens", raw.headers["x-ratelimit-limit-tokens"], raw.headers["x-ratelimit-remaining-tokens"])
fails("tokens", limited, "qwen3", "again", stream=True)
keyed = lambda key: openai.OpenAI(base_url=f"http://{address}/keyed/v1", **{**options, "api_key": key})
whole_of = keyed("right").chat.completions.create(model="qwen3", messages=user("who are you"))
print("key", whole_of.choices[0].message.content)
fails("key", keyed("wrong"), "qwen3", "who are you")
budget = openai.OpenAI(base_url=f"http://{address}/budget/v1", **{**options, "api_key": "of python"})
raw = budget.chat.completions.with_raw_response.create(model="qwen3", messages=user("who are you"))
print("budget", raw.headers["x-ratelimit-limit-tokens"], raw.headers["x-ratelimit-remaining-tokens"])
fails("budget", budget, "qwen3", "again")
fails("no model", client, "unknown", "who are you")
fails("no fallback", service, "unknown", "who are you", stream=True)
