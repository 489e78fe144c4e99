"""Responses through OpenAI's own package. Exits with 77 where it is not installed."""

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
    colour: Literal["red", "green"]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    days: int = Field(ge=1, le=9)


def check(what, good, *shown):
    if not good:
        print("FAILED:", what, *shown)
        sys.exit(1)


def text(client, asked):
    answer = client.responses.create(**asked, instructions="Be brief.")
    check("a text", answer.output_text and answer.status in ("completed", "incomplete"), answer)
    prompt = {"model": asked["model"], "input": asked["input"], "instructions": "Be brief."}
    counted = client.responses.input_tokens.count(**prompt).input_tokens
    check("a counted prompt", counted == answer.usage.input_tokens, counted, answer)
    numbers = []
    with client.responses.stream(**asked, instructions="Be brief.") as stream:
        for event in stream:
            numbers.append(event.sequence_number)
    check("every event is numbered", numbers == list(range(len(numbers))), numbers)
    plain = client.responses.create(**asked, instructions="Be brief.", stream=True)
    text = "".join(event.delta for event in plain if event.type == "response.output_text.delta")
    check("a streamed text", text == answer.output_text, text, answer)


def two_rounds(client, asked):
    tools = {"tools": [openai.pydantic_function_tool(GetWeather)], "parallel_tool_calls": False}
    # The helper of this endpoint takes the flat form.
    function = tools["tools"][0]["function"]
    tools["tools"] = [{"type": "function", **function}]
    asked = {**asked, **tools, "max_output_tokens": 150}
    answer = client.responses.parse(**asked, tool_choice="required")
    call = answer.output[0]
    check("a call", call.type == "function_call" and GetWeather.model_validate_json(call.arguments), answer)
    with client.responses.stream(**asked, tool_choice="required") as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    check("a streamed call", final.output[0].arguments == call.arguments, final, kinds)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."}
    short = {**asked, "max_output_tokens": 8, "tool_choice": "none"}
    kept = client.responses.create(**{**short, "input": [result]}, previous_response_id=answer.id)
    check("it goes on from what is kept", kept.output_text, kept)
    whole = [{"role": "user", "content": asked["input"]}, *answer.output, result]
    sent = client.responses.create(**{**short, "input": whole}, store=False)
    check("it goes on from what is sent", sent.output_text == kept.output_text, sent, kept)
    return answer, kept


def parallel(client, asked):
    tools = [openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}]
    asked = {**asked, "model": "equals", "tools": tools, "max_output_tokens": 500}
    for seed in range(160):
        seeded = {**asked, "extra_body": {"seed": seed}, "tool_choice": "required"}
        answer = client.responses.create(**seeded)
        if answer.status == "completed" and len(answer.output) == 2:
            break
    else:
        check("an answer with two calls", False)
    with client.responses.stream(**seeded) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
    check("two streamed calls", [event.output_index for event in done] == [0, 1], done)
    check("the same as whole", [e.arguments for e in done] == [c.arguments for c in answer.output], done, answer)
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sun."} for call in answer.output]
    more = {"input": results, "previous_response_id": answer.id, "max_output_tokens": 16, "tool_choice": "none"}
    check("two results go back", client.responses.create(**{**asked, **more}).output_text is not None)


def typed(client, asked):
    answer = client.responses.parse(**{**asked, "max_output_tokens": 150}, text_format=Person)
    check("a typed answer", answer.output_parsed.colour in ("red", "green"), answer)


def kept(client, called, answer):
    check("it is there", client.responses.retrieve(answer.id).output_text == answer.output_text)
    told = client.responses.retrieve(answer.id, stream=True)
    text = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    check("its events are there", text == answer.output_text, text, answer)
    # The package takes only an answer that was not cut as the last one of a stream.
    with client.responses.stream(response_id=called.id) as stream:
        final = stream.get_final_response()
    check("as a stream, too", final.output[0].arguments == called.output[0].arguments, final, called)
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError as error:
        return check("it says what to do", "`input`" in str(error), error)
    check("it is gone", False)


def refusals(client, asked):
    for error, more in [
        (openai.BadRequestError, {"tools": [{"type": "web_search"}]}),
        (openai.BadRequestError, {"background": True}),
        (openai.NotFoundError, {"previous_response_id": "resp_none"}),
        (openai.BadRequestError, {"input": "word " * 20000}),
    ]:
        try:
            client.responses.create(**{**asked, **more})
        except error as raised:
            check("it is named", raised.param, raised)
            continue
        check("it is refused", False, more)


def vectors(client):
    asked = {"model": "tools", "extra_body": {"pooling": "mean"}}
    # The package asks for base64 unless it is told otherwise.
    both = client.embeddings.create(input=["The fox", "A bird"], **asked).data
    check("one for each", [one.index for one in both] == [0, 1], both)
    check("of length 1", abs(sum(x * x for x in both[0].embedding) - 1) < 1e-5)
    numbers = client.embeddings.create(input="The fox", encoding_format="float", **asked).data[0]
    # Numbers are written as short as an f32 needs, bytes are the f32 itself.
    apart = max(abs(a - b) for a, b in zip(numbers.embedding, both[0].embedding, strict=True))
    check("the same in both encodings", apart < 1e-6, apart)
    scored = client.completions.create(model="tools", prompt="The fox", echo=True, logprobs=1, max_tokens=0)
    check("a scored prompt", scored.choices[0].logprobs.token_logprobs[0] is None, scored)


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="local", max_retries=0, timeout=60)
    asked = {"model": "tools", "input": "What is the weather in Rome?", "max_output_tokens": 24}
    asked["extra_body"] = {"seed": 3}
    text(client, asked)
    called, answer = two_rounds(client, asked)
    parallel(client, asked)
    typed(client, asked)
    kept(client, called, answer)
    refusals(client, asked)
    vectors(client)
    print("ok")


main()
