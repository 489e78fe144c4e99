#!/usr/bin/env python3
"""Writes tests/fixtures/templates.json: chat templates with what transformers makes of them.

The templates are our own; they use the constructs of the Llama 3, Qwen 2.5 and 3, and Mistral templates, and then
every construct by itself. Run from this folder: `python make_template_fixtures.py` (needs `transformers`).
"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

LLAMA = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}
    {{- "You can call tools.\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today: " + date_string + "\\n" }}
{{- system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at once") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot|>" }}
    {%- else %}
        {{- "<|start|>tool<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}{{- " " + message["content"]|trim + eos_token}}{%- endgeneration %}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

TALK = [
    {"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "Hi <b> & 'you' \u00e9\ud83e\udd80!".encode("utf-16", "surrogatepass").decode("utf-16")},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}, {"role": "user", "content": "2+2?"},
]
CALL = TALK + [
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2.5, "note": "<x> \"q\" \u00e9"}}}]},
    {"role": "tool", "content": "4.5"}, {"role": "tool", "content": "done"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number", "default": 1e-05}},
    "required": ["a", "b"], "empty": [], "none": {}, "big": 1e16, "yes": True, "no": None}}}]

ONE_BY_ONE = {
    "trim and lstrip blocks": "  {% if true %}\n  a\n  {% endif %}\nb\n    {# c #}\nend\n",
    "loop controls": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "macro": "{% macro f(x, y=2) %}[{{ x }}|{{ y }}]{% endmacro %}{{ f(1) }}{{ f('a', y=f(3)) }}",
    "set block": "{% set x %}a{{ 1 + 1 }}{% endset %}{{ x }}{{ x|length }}",
    "tojson": "{{ messages|tojson }}\n{{ messages|tojson(indent=2) }}\n{{ [1, 1.0, true, none, 'a\\u2028<>&\\'']|tojson }}",
    "tojson options": "{{ {'b': 1, 'a': [1, 'é']}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
    "string methods": "{{ ' aBc '.strip().upper() }}{{ 'a,b'.split(',')|join('-') }}{{ 'x'.replace('x', 'yy') }}{{ 'Ab'.lower().title() }}{{ 'abc'.find('c') }}{{ 'a\\nb'.splitlines()|length }}",
    "slices": "{{ 'hello'[1:3] }}{{ 'hello'[::-1] }}{{ [1,2,3][-1] }}{{ [1,2,3][:-1] }}{{ messages[-1].content }}",
    "arithmetic": "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ 1 / 2 }} {{ 3 * 2 - 1 }} {{ '-' * 5 }} {{ [0] * 3 }} {{ 1 + 2.5 }}",
    "concat": "{{ 'a' ~ 1 ~ none ~ true ~ [1, 'b'] }}",
    "lists and dicts": "{% set d = {'k': [1, 2], 'z': {'n': 1}} %}{{ d.k + [3] }}{{ d['z'].n }}{{ d.get('q', 'def') }}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d.keys()|list }}{{ (1, 2) }}",
    "filters": "{{ ['b', 'a']|sort|first }}{{ [1, 2, 3]|sum }}{{ 'abc'|upper|reverse }}{{ [3, 1]|max }}{{ none|default('x', true) }}{{ undefd|default('y') }}{{ 'a b'|title }}{{ [1, 1, 2]|unique|list }}{{ 'x\\ny'|indent(2) }}",
    "select and map": "{{ messages|map(attribute='role')|join(',') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('role', 'in', ['user'])|map(attribute='role')|list }}{{ [1, 2, 3]|select('odd')|list }}",
    "tests": "{{ 1 is number }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ none is none }}{{ x is defined }}{{ 2 is divisibleby 2 }}{{ 1 is eq 1 }}{{ true is true }}{{ 'a' is in 'abc' }}",
    "inline if": "{{ 'a' if messages else 'b' }}{{ 'c' if false }}{{ (1 if 0 else 2) + 1 }}",
    "undefined prints nothing": "[{{ nothing }}][{{ messages[0].nothing }}]{% for x in nothing %}x{% endfor %}",
    "comparisons": "{{ 1 < 2 <= 2 }}{{ 'a' != 'b' }}{{ [1] == [1] }}{{ 'a' in ['a'] }}{{ 'b' not in {'b': 1} }}{{ 1 == 1.0 }}{{ 3 > 2 and not 1 >= 2 }}",
    "loop variables": "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %};{% else %}none{% endfor %}",
    "whitespace control": "a  {{- 'b' -}}  c {%- if true -%} d {%- endif -%} e",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "raises": "{{ raise_exception('no system role, please') }}",
}


def case(name, template, context):
    try:
        out = {"text": _compile_jinja_template(template).render(**context)}
    except Exception as error:  # noqa: BLE001: whatever it raises is the expected result
        out = {"error": type(error).__name__, "message": str(error)}
    return {"name": name, "template": template, "context": context, **out}


def main():
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    cases = []
    for name, template in [("llama", LLAMA), ("qwen", QWEN), ("mistral", MISTRAL)]:
        for kind, messages, tools in [("talk", TALK, None), ("call", CALL, TOOLS), ("tools", TALK, TOOLS), ("short", TALK[1:2], None)]:
            for prompt in [True, False]:
                context = {"messages": messages, "tools": tools, "add_generation_prompt": prompt, **ends}
                cases.append(case(f"{name} {kind} {prompt}", template, context))
    cases.append(case("qwen no thinking", QWEN, {
        "messages": TALK, "tools": None, "add_generation_prompt": True, "enable_thinking": False, **ends}))
    for name, template in ONE_BY_ONE.items():
        cases.append(case(name, template, {"messages": TALK, "tools": None, "add_generation_prompt": False, **ends}))
    out = pathlib.Path(__file__).parent / "fixtures" / "templates.json"
    out.write_text(json.dumps(cases, indent=0) + "\n")


main()
