"""Answers of three packages at once, while a node is lost inside of all of them. Exits with 77 where one is not installed.

Says `ready` when it knows each answer, waits for a line, asks again, says `inside` when every answer has begun."""

import json
import sys
import threading

try:
    import anthropic
    import ollama
    import openai
except ImportError as missing:
    print(f"no package: {missing}")
    sys.exit(77)

NODE = sys.argv[1]
ITEMS = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 40, "maxItems": 40}
SCHEMA = {"type": "object", "properties": {"colours": ITEMS}, "required": ["colours"], "additionalProperties": False}
QUESTION = [{"role": "user", "content": "Colours?"}]
# Pieces of an answer that are read before the node is lost.
BEGINNING = 3
WAIT_S = 60

OPENAI = openai.OpenAI(base_url=f"{NODE}/v1", api_key="local", max_retries=0, timeout=WAIT_S)
ANTHROPIC = anthropic.Anthropic(base_url=NODE, api_key="local", max_retries=0, timeout=WAIT_S)
OLLAMA = ollama.Client(host=NODE, timeout=WAIT_S)
CHAT = {"model": "demo", "messages": QUESTION, "max_tokens": 400, "temperature": 1, "seed": 7, "stream": True}
CHAT["stream_options"] = {"include_usage": True}


def chat_schema(seen):
    format = {"type": "json_schema", "json_schema": {"name": "colours", "schema": SCHEMA}}
    for chunk in OPENAI.chat.completions.create(**CHAT, response_format=format):
        seen.append(chunk)
        yield (chunk.choices[0].delta.content if chunk.choices else None) or ""


def chat_call(seen):
    function = {"name": "paint", "strict": True, "parameters": SCHEMA}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for chunk in OPENAI.chat.completions.create(**CHAT, **tools, parallel_tool_calls=False):
        seen.append(chunk)
        for call in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or []:
            yield call.function.arguments or ""


def response_schema(_):
    format = {"format": {"type": "json_schema", "name": "colours", "schema": SCHEMA}}
    asked = {"model": "demo", "input": "Colours?", "max_output_tokens": 400, "extra_body": {"seed": 7}}
    for event in OPENAI.responses.create(**asked, text=format, stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta


def message_call(_):
    tools = {"tools": [{"name": "paint", "strict": True, "input_schema": SCHEMA}]}
    tools["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 400, "extra_body": {"seed": 7}}
    for event in ANTHROPIC.messages.create(**asked, **tools, stream=True):
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            yield event.delta.partial_json


def ollama_schema(_):
    options = {"seed": 7, "num_predict": 400}
    for part in OLLAMA.chat(model="demo", messages=QUESTION, format=SCHEMA, options=options, stream=True):
        yield part.message.content or ""


ANSWERS = [chat_schema, chat_call, response_schema, message_call, ollama_schema]
STEPS = threading.Barrier(len(ANSWERS) + 1)
FAILED = []


def follow(answer):
    try:
        expected = "".join(answer([]))
        if len(json.loads(expected)["colours"]) != 40:
            raise ValueError(f"not whole: {expected}")
        STEPS.wait(WAIT_S)  # ready
        STEPS.wait(WAIT_S)  # told to go on
        seen, pieces = [], []
        for piece in answer(seen):
            pieces.append(piece)
            if len(pieces) == BEGINNING:
                STEPS.wait(WAIT_S)  # inside
        if "".join(pieces) != expected:
            raise ValueError(f"{''.join(pieces)} is not {expected}")
        # The chat's last chunk says where its answer was interrupted.
        if seen and not (seen[-1].model_extra or {}).get("exo", {}).get("resumed"):
            raise ValueError(f"it was not interrupted: {seen[-1]}")
    except Exception as error:  # noqa: BLE001
        FAILED.append(f"{answer.__name__}: {error!r}")
        STEPS.abort()


def main():
    threads = [threading.Thread(target=follow, args=[answer]) for answer in ANSWERS]
    for thread in threads:
        thread.start()
    try:
        STEPS.wait(WAIT_S)
        print("ready", flush=True)
        sys.stdin.readline()
        STEPS.wait(WAIT_S)
        STEPS.wait(WAIT_S)
        print("inside", flush=True)
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join(2 * WAIT_S)
    for failed in FAILED:
        print("FAILED:", failed)
    print("ok" if not FAILED else "failed")
    sys.exit(1 if FAILED else 0)


main()
