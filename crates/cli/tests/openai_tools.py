"""Tools, schemas and typed helpers through OpenAI's own package. Exits with 77 where it is not installed."""

import json
import sys
from typing import Literal

try:
    import openai
    from pydantic import BaseModel, Field
except ImportError as missing:
    print(f"no package: {missing}")
    sys.exit(77)


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=120)
    colour: Literal["red", "green"]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    days: int = Field(ge=1, le=9)


def check(what, good, *shown):
    if not good:
        print("FAILED:", what, *shown)
        sys.exit(1)


def schema(client, asked):
    answer = client.chat.completions.parse(**asked, response_format=Person)
    person = answer.choices[0].message.parsed
    check("a typed answer", person and 0 <= person.age <= 120 and len(person.name) <= 10, answer)
    with client.chat.completions.stream(**asked, response_format=Person) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check("a streamed typed answer", final.choices[0].message.parsed == person, final, person)


def two_rounds(client, asked):
    tool = openai.pydantic_function_tool(GetWeather)
    asked = {**asked, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.parse(**asked)
    message = answer.choices[0].message
    call = message.tool_calls[0]
    check("a typed call", call.function.parsed_arguments.city in ("Rome", "Oslo"), answer)
    check("it says that it calls", answer.choices[0].finish_reason == "tool_calls" and message.content is None, answer)
    events, names = [], []
    with client.chat.completions.stream(**asked) as stream:
        for event in stream:
            events.append(event.type)
            if event.type == "tool_calls.function.arguments.done":
                names.append((event.name, json.loads(event.arguments)))
    check("a streamed call", names == [("GetWeather", json.loads(call.function.arguments))], events, names, call)
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
    messages = [*asked["messages"], message, result]
    asked = {**asked, "messages": messages, "tool_choice": "none", "max_tokens": 8}
    check("a second round", client.chat.completions.create(**asked).choices[0].message.tool_calls is None)


def parallel(client, asked):
    tool = openai.pydantic_function_tool(GetWeather)
    asked = {**asked, "model": "equals", "tools": [tool], "tool_choice": "required", "max_tokens": 500}
    for seed in range(160):
        answer = client.chat.completions.create(**{**asked, "seed": seed})
        if answer.choices[0].finish_reason == "tool_calls" and len(answer.choices[0].message.tool_calls) == 2:
            break
    else:
        check("an answer with two calls", False)
    with client.chat.completions.stream(**{**asked, "seed": seed}) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    check("two typed calls in a stream", [event.index for event in done] == [0, 1], done)
    check("of their schema", all(event.parsed_arguments.city in ("Rome", "Oslo") for event in done), done)
    message = answer.choices[0].message
    check("the same as whole", [e.arguments for e in done] == [c.function.arguments for c in message.tool_calls], done, answer)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Sun."} for call in message.tool_calls]
    asked = {**asked, "messages": [*asked["messages"], message, *results], "tool_choice": "none", "max_tokens": 8}
    check("two results go back", client.chat.completions.create(**asked).choices[0].message.tool_calls is None)


def refusals(client, asked):
    schema = {"type": "array", "items": {"not": {"type": "null"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    try:
        client.chat.completions.create(**asked, response_format=wanted)
    except openai.BadRequestError as error:
        return check("the place is named", "#/items/not" in str(error), error)
    check("a schema that cannot be enforced is refused", False)


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="local", max_retries=0, timeout=60)
    hello = [{"role": "user", "content": "What is the weather in Rome?"}]
    asked = {"model": "tools", "messages": hello, "max_tokens": 150, "temperature": 1, "seed": 3}
    schema(client, asked)
    two_rounds(client, asked)
    parallel(client, asked)
    refusals(client, asked)
    print("ok")


main()
