"""Messages through Anthropic's own package. Exits with 77 where it is not installed."""

import sys
from typing import Literal

try:
    import anthropic
    from pydantic import BaseModel
except ImportError as missing:
    print(f"no package: {missing}")
    sys.exit(77)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"name": "get_weather", "description": "The weather.", "strict": True, "input_schema": SCHEMA}]


class Person(BaseModel):
    # The package takes bounds out of schemas, so that an answer of any length would be valid.
    name: Literal["Ann", "Bob"]
    colour: Literal["red", "green"]


def check(what, good, *shown):
    if not good:
        print("FAILED:", what, *shown)
        sys.exit(1)


def text(client, asked):
    answer = client.messages.create(**asked, system=[{"type": "text", "text": "Be brief."}])
    check("a text", answer.content[0].type == "text" and answer.content[0].text, answer)
    with client.messages.stream(**asked, system=[{"type": "text", "text": "Be brief."}]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("a streamed text", text == answer.content[0].text == final.content[0].text, text, answer)
    check("its usage", final.usage.output_tokens == answer.usage.output_tokens, final, answer)


def two_rounds(client, asked):
    asked = {**asked, "tools": TOOLS, "max_tokens": 150}
    forced = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    answer = client.messages.create(**asked, **forced)
    call = answer.content[0]
    check("a call", answer.stop_reason == "tool_use" and call.input["city"] in ("Rome", "Oslo"), answer)
    with client.messages.stream(**asked, **forced) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    check("a streamed call", final.content[0].input == call.input and "input_json" in kinds, final, kinds)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun."}
    messages = [
        *asked["messages"],
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    again = {**asked, "messages": messages, "tool_choice": {"type": "none"}}
    again = client.messages.create(**{**again, "max_tokens": 8})
    check("a second round", again.stop_reason in ("max_tokens", "end_turn"), again)
    counted = client.messages.count_tokens(model=asked["model"], messages=messages, tools=TOOLS)
    check("tokens are counted", counted.input_tokens > 10, counted)


def parallel(client, asked):
    asked = {**asked, "model": "equals", "tools": TOOLS, "max_tokens": 500}
    for seed in range(160):
        seeded = {**asked, "extra_body": {"seed": seed}, "tool_choice": {"type": "any"}}
        answer = client.messages.create(**seeded)
        if answer.stop_reason == "tool_use" and len(answer.content) == 2:
            break
    else:
        check("an answer with two calls", False)
    with client.messages.stream(**seeded) as stream:
        final = stream.get_final_message()
    check("two streamed calls", [b.input for b in final.content] == [b.input for b in answer.content], final, answer)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "Sun."} for call in answer.content]
    turns = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    more = {"messages": [*asked["messages"], *turns], "max_tokens": 8, "tool_choice": {"type": "none"}}
    check("two results go back", client.messages.create(**{**asked, **more}).stop_reason in ("max_tokens", "end_turn"))


def typed(client, asked):
    asked = {**asked, "max_tokens": 150}
    answer = client.messages.parse(**asked, output_format=Person)
    check("a typed answer", answer.parsed_output.colour in ("red", "green"), answer)


def models(client):
    listed = list(client.models.list())
    check("models", any(model.id == "tools" for model in listed), listed)
    check("one model", client.models.retrieve("tools").display_name == "tools")


def refusals(client, asked):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    for error, more in [
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [image]}]}),
        (anthropic.NotFoundError, {"model": "none"}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20000}]}),
    ]:
        try:
            client.messages.create(**{**asked, **more})
        except error as raised:
            check("its id", raised.request_id and raised.body["type"] == "error", raised)
            continue
        check("it is refused", False, more)


def main():
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="local", max_retries=0, timeout=60)
    hello = [{"role": "user", "content": "What is the weather in Rome?"}]
    asked = {"model": "tools", "messages": hello, "max_tokens": 24, "extra_body": {"seed": 3}}
    text(client, asked)
    two_rounds(client, asked)
    parallel(client, asked)
    typed(client, asked)
    models(client)
    del asked["extra_body"]
    refusals(client, asked)
    print("ok")


main()
