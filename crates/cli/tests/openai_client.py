"""Checks a running exo node with OpenAI's own Python package.

    python openai_client.py http://127.0.0.1:52415/v1 MODEL [--real]

`--real` adds what only a real model can show: stop strings, seeds, greedy text that repeats itself. Ends with `ok`,
with exit code 1 at the first claim that does not hold, and with 77 and a reason when the package is missing.
"""

import argparse
import asyncio
import sys

try:
    import openai
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def check(claim, holds, seen=None):
    if not holds:
        print(f"FAILED: {claim}: {seen!r}")
        sys.exit(1)
    print(f"  {claim}")


def refused(claim, kind, code, param, call):
    try:
        call()
    except kind as error:
        check(claim, (error.code, error.param) == (code, param), (error.code, error.param, error.message))
    else:
        check(claim, False, "no error")


def models(client, model):
    listed = [m.id for m in client.models.list()]
    check("the model is listed", model in listed, listed)
    check("one model can be read", client.models.retrieve(model).id == model)


def chat(client, model):
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=8, temperature=0)
    choice = answer.choices[0]
    check("a chat answers", choice.message.role == "assistant" and choice.message.content, answer)
    check("it says why it ended", choice.finish_reason in ("stop", "length"), choice)
    usage = answer.usage
    check("usage adds up", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage)
    two = client.chat.completions.create(model=model, messages=HELLO, max_completion_tokens=4, n=2)
    check("two choices come in order", [c.index for c in two.choices] == [0, 1], two)
    scored = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    ).choices[0].logprobs.content
    check("probabilities come with tokens", all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in scored), scored)
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    again = client.chat.completions.create(
        model=model, messages=HELLO[:1] + [{"role": "user", "content": parts}], max_tokens=8, temperature=0
    )
    check("text parts are the text", again.choices[0].message.content == choice.message.content, again)


def chat_stream(client, model):
    stream = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("a chat streams", text, chunks)
    check("the first chunk names the role", chunks[0].choices[0].delta.role == "assistant", chunks[0])
    check("the last chunk has the usage", chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices, chunks[-1])
    check("all chunks have one id", len({c.id for c in chunks}) == 1)
    finish = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    check("it finishes once", len(finish) == 1, finish)
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=8, temperature=0)
    check("streamed and whole text agree", whole.choices[0].message.content == text, (whole, text))
    with client.chat.completions.create(model=model, messages=HELLO, max_tokens=64, stream=True) as left:
        next(iter(left))
    check("a stream can be left early", client.models.list().data)


def completions(client, model):
    answer = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, logprobs=1)
    choice = answer.choices[0]
    check("a completion answers", choice.text, answer)
    check("its token offsets rise", choice.logprobs.text_offset == sorted(choice.logprobs.text_offset), choice)
    echo = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, echo=True)
    check("echo puts the prompt before it", echo.choices[0].text == "Once" + choice.text, (echo, choice))
    stream = client.completions.create(model=model, prompt=["Once"], max_tokens=8, temperature=0, stream=True)
    text = "".join(c.choices[0].text for c in stream)
    check("a completion streams the same text", text == choice.text, (text, choice))
    tokens = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=2)
    check("a prompt can be token ids", tokens.choices[0].finish_reason, tokens)


def errors(client, model):
    def ask(**more):
        return client.chat.completions.create(**{"model": model, "messages": HELLO, **more})

    bad = openai.BadRequestError
    refused("an unknown model is 404", openai.NotFoundError, "model_not_found", "model", lambda: ask(model="no-such"))
    refused("what is not done is refused by name", bad, "unsupported_parameter", "web_search_options",
            lambda: ask(web_search_options={}))
    kind = {"type": "xml"}
    refused("an unknown format too", bad, "invalid_value", "response_format.type", lambda: ask(response_format=kind))
    refused("no tokens is no request", bad, "invalid_value", "max_tokens", lambda: ask(max_tokens=0))
    refused("a wild temperature", bad, "invalid_value", "temperature", lambda: ask(temperature=3))
    refused("a slip", bad, "unknown_parameter", "temprature", lambda: ask(extra_body={"temprature": 1}))
    neutral = {"tool_choice": "none", "response_format": {"type": "text"}, "store": False, "user": "me"}
    check("what asks for nothing passes", ask(max_tokens=2, metadata={"a": "b"}, **neutral).choices)


async def at_once(url, model):
    client = openai.AsyncOpenAI(base_url=url, api_key="local", max_retries=0, timeout=120)
    ask = client.chat.completions.create
    answers = await asyncio.gather(*(ask(model=model, messages=HELLO, max_tokens=4, temperature=0) for _ in range(4)))
    texts = {a.choices[0].message.content for a in answers}
    check("four requests at once agree", len(texts) == 1, texts)


def real(client, model):
    def text(**more):
        base = {"model": model, "prompt": "Once", "max_tokens": 24, "temperature": 0}
        return client.completions.create(**{**base, **more}).choices[0].text

    plain = text(extra_body={"ignore_eos": True})
    stop = plain[len(plain) // 2 :][:3]
    cut = text(stop=stop, extra_body={"ignore_eos": True})
    check("text ends before a stop string", plain.startswith(cut) and stop not in cut, (plain, stop, cut))
    check("a seed repeats itself", text(temperature=1, seed=7) == text(temperature=1, seed=7))
    check("ignore_eos fills max_tokens", client.completions.create(
        model=model, prompt="Once", max_tokens=24, extra_body={"ignore_eos": True}
    ).usage.completion_tokens == 24)
    bad = openai.BadRequestError
    refused("a prompt beyond the context", bad, "context_length_exceeded", "prompt", lambda: text(prompt="a b " * 300_000))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--api-key", default="local")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=args.url, api_key=args.api_key, max_retries=0, timeout=120)
    models(client, args.model)
    chat(client, args.model)
    chat_stream(client, args.model)
    completions(client, args.model)
    errors(client, args.model)
    asyncio.run(at_once(args.url, args.model))
    if args.real:
        real(client, args.model)
    print("ok")


if __name__ == "__main__":
    main()
