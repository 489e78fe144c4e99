"""The chat template of the demo model, and how it gets into a file that was trained before it was written.

    python template.py            # writes it into the file beside this script; the tensors keep their bytes
    python template.py --check    # fails where the file has another one

Without tools it is plain ChatML, the text that the model was trained on. Tools, calls and results are written as Hermes and Qwen
write them: JSON in tags. The model was not trained on calls; what it must call is held to by the grammar of the answer.
"""

import argparse
import struct
from pathlib import Path

FILE = Path(__file__).parent / "exo-demo-Q8_0.gguf"
KEY = b"tokenizer.chat_template"
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\nTools:' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% if message['tool_calls'] %}{% for call in message['tool_calls'] %}"
    "{{ '\\n' if message['content'] or not loop.first else '' }}"
    "{{ '<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
# What each kind of value takes, but for texts (8) and lists (9).
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


def skip(data, at, kind):
    """Where the value ends that begins at `at`."""
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != 9:
        return at + SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in SIZES:
        return at + count * SIZES[inner]
    for _ in range(count):
        at = skip(data, at, inner)
    return at


def find(data):
    """Where the template's text begins and ends, and where the list of tensors does."""
    assert data[:4] == b"GGUF" and b"general.alignment" not in data[:4096]
    tensors, keys = struct.unpack_from("<QQ", data, 8)
    at, text = 24, None
    for _ in range(keys):
        end = skip(data, at, 8)
        key, kind = data[at + 8 : end], struct.unpack_from("<I", data, end)[0]
        at = skip(data, end + 4, kind)
        if key == KEY:
            text = (end + 12, at)
    for _ in range(tensors):
        at = skip(data, at, 8)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    return text, at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    data = FILE.read_bytes()
    (start, end), header = find(data)
    if args.check:
        assert data[start:end].decode() == TEMPLATE, "the file has another template"
        return
    tensors = data[header + -header % ALIGNMENT :]
    new = TEMPLATE.encode()
    head = data[: start - 8] + struct.pack("<Q", len(new)) + new + data[end:header]
    FILE.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + tensors)


if __name__ == "__main__":
    main()
