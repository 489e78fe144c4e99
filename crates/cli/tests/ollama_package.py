"""Chat and generate through Ollama's own package. Exits with 77 where it is not installed."""

import json
import sys

try:
    import ollama
except ImportError as missing:
    print(f"no package: {missing}")
    sys.exit(77)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]
SHORT = {"seed": 5, "num_predict": 60}


def check(what, good, *shown):
    if not good:
        print("FAILED:", what, *shown)
        sys.exit(1)


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: The city.
    """
    return city


def texts(client):
    whole = client.chat(model="tools", messages=ASKED, options=SHORT)
    pieces = list(client.chat(model="tools", messages=ASKED, options=SHORT, stream=True))
    check("a stream says the same", "".join(p.message.content for p in pieces) == whole.message.content, pieces)
    check("the last line counts", pieces[-1].done and pieces[-1].eval_count == whole.eval_count, pieces[-1])
    check("durations", whole.total_duration > 0 and whole.prompt_eval_duration > 0, whole)
    generated = client.generate(model="tools", prompt="Once", raw=True, options=SHORT)
    check("raw text", generated.response and generated.done_reason in ("stop", "length"), generated)
    scored = client.generate(model="tools", prompt="Once", raw=True, options=SHORT, logprobs=True, top_logprobs=2)
    check("probabilities", len(scored.logprobs[0].top_logprobs) == 2, scored.logprobs)
    answer = client.chat(model="tools", messages=ASKED, format=SCHEMA, options=SHORT)
    check("a schema", 1 <= json.loads(answer.message.content)["days"] <= 9, answer)
    check("ready", client.generate(model="tools").done_reason == "load")


def tools(client):
    answer = client.chat(model="tools", messages=ASKED, tools=[get_weather], options=SHORT)
    check("tools are taken", answer.done, answer)
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    turns = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "Sun."},
    ]
    check("and results", client.chat(model="tools", messages=turns, tools=[get_weather], options=SHORT).done)


def parallel(client):
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    # Nobody can require a call here: beside a format, an answer is of it or calls.
    asked = {"model": "equals", "messages": ASKED, "tools": [tool], "format": {"const": 7}}
    for seed in range(160):
        options = {"seed": seed, "num_predict": 500, "temperature": 1, "top_p": 1, "top_k": 0}
        answer = client.chat(**asked, options=options)
        if answer.done_reason == "stop" and len(answer.message.tool_calls or []) == 2:
            break
    else:
        check("an answer with two calls", False)
    pieces = client.chat(**asked, options=options, stream=True)
    calls = [call.function for piece in pieces for call in piece.message.tool_calls or []]
    check("two streamed calls", calls == [call.function for call in answer.message.tool_calls], calls, answer)
    results = [{"role": "tool", "tool_name": "get_weather", "content": said} for said in ("Sun.", "Rain.")]
    turns = [*ASKED, answer.message, *results]
    check("two results go back", client.chat(model="equals", messages=turns, options={"num_predict": 8}).done)


# As the documentation prints it, but for what is placed here.
EVERY_OPTION = {
    "num_keep": 5,
    "seed": 42,
    "num_predict": 20,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 0.7,
    "repeat_last_n": 33,
    "temperature": 0.8,
    "repeat_penalty": 1.2,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.0,
    "penalize_newline": True,
    "stop": ["\n", "user:"],
    "numa": False,
    "num_ctx": 128,
    "num_batch": 2,
    "num_gpu": 1,
    "main_gpu": 0,
    "use_mmap": True,
    "num_thread": 8,
}


def options(client):
    asked = {"model": "tools:latest", "prompt": "Why is the sky blue?", "options": EVERY_OPTION}
    first, second = client.generate(**asked), client.generate(**asked)
    check("every option", first.done and first.response == second.response, first, second)
    check("the model as it was asked for", first.model == "tools:latest", first)


def models(client):
    check("a list", "tools" in [m.model for m in client.list().models], client.list())
    check("what is placed", "tools" in [m.model for m in client.ps().models], client.ps())
    check("a model", "tools" in client.show("tools").capabilities, client.show("tools"))
    listed = next(m for m in client.list().models if m.model == "tools")
    check("its parameters", listed.details.parameter_size[-1] in "KMB", listed)
    check("its date", listed.modified_at.year > 2000, listed)
    check("pull", client.pull("tools").status == "success")
    check("pull in lines", [p.status for p in client.pull("tools", stream=True)] == ["success"])


def refused(client, what, status, call):
    try:
        call()
    except ollama.ResponseError as error:
        check(what, error.status_code == status, error)
        return error.error
    check(what, False, "was not refused")


def errors(client):
    said = refused(client, "an unknown model", 404, lambda: client.chat(model="none", messages=ASKED))
    check("says which", "none" in said, said)
    said = refused(client, "pull", 404, lambda: client.pull("none"))
    check("names the command", "exo pull" in said, said)
    refused(client, "delete", 403, lambda: client.delete("tools"))
    refused(client, "copy", 403, lambda: client.copy("tools", "other"))
    refused(client, "mirostat", 400, lambda: client.chat(model="tools", messages=ASKED, options={"mirostat": 1}))
    said = refused(client, "no pooling", 400, lambda: client.embed(model="tools", input="x"))
    check("says what to name", "pooling" in said, said)


client = ollama.Client(host=sys.argv[1], timeout=60)
for part in (texts, tools, parallel, options, models, errors):
    part(client)
print("ok")
