"""Asks a model beside another node with the client of OpenAI, and prints what it sees: openai_peers.py ADDRESS."""

import sys

import openai

client = openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1/service/llm/v1", api_key="secret", max_retries=0, timeout=60)


def ask(text, model="llama3", **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


print("models", *(m.id for m in client.models.list()))
print("whole", ask("who are you").choices[0].message.content)

# The model says the next word only once this client has the last one.
words = []
for chunk in ask("hold", stream=True):
    if chunk.choices and chunk.choices[0].delta.content:
        words.append(chunk.choices[0].delta.content)
        ask("release")
print("held", *words)

with ask("endless", stream=True) as endless:
    for n, chunk in enumerate(endless):
        if n == 2:
            break
print("left")

try:
    ask("who are you", model="unknown")
except openai.APIStatusError as e:
    print("unknown", type(e).__name__, e.status_code)
