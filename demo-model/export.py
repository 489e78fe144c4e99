"""Writes the trained model as GGUF (Q8_0, norms F32), reads that file back and says what it answers.

    python export.py --dir /tmp/demo-train            # writes the files beside this script
    python export.py --check                          # only reads them back

Everything stated in `expected.json` is computed in float32 from the weights *in the file*, dequantised by the
`gguf` package: it is what any correct reader of the file must get, up to rounding.
"""

import argparse
import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models

import generate
import train
import vocab
from model import Config, Demo, greedy
from template import TEMPLATE

HERE = Path(__file__).parent
FILE = HERE / "exo-demo-Q8_0.gguf"
HELDOUT = HERE / "heldout.txt"
EXPECTED = HERE / "expected.json"
PROMPTS = [
    "What is 47 + 38?",
    "Put 9, 3, 7 in order.",
    "Tell me a story about a fox and a lantern.",
    "Who are you?",
    "The key is red. The cup is green. What colour is the cup?",
    "Sort these words: owl, bread, kite.",
]


def write(model, tokenizer, path):
    c = model.c
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name("exo demo")
    w.add_description("A tiny model that answers a few things visibly right. Trained on generated text.")
    w.add_license("apache-2.0")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_vocab_size(c.vocabulary)
    w.add_context_length(c.context)
    w.add_block_count(c.layers)
    w.add_embedding_length(c.hidden)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_dimension_count(c.head_size)
    w.add_rope_freq_base(c.rope_base)
    state = json.loads(tokenizer.to_str())
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    control = set(vocab.SPECIAL)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list([token for token, _ in ids])
    w.add_token_types([gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token, _ in ids])
    w.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    w.add_bos_token_id(tokenizer.token_to_id("<|endoftext|>"))
    w.add_eos_token_id(tokenizer.token_to_id(generate.END))
    w.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.add_chat_template(TEMPLATE)
    for name, tensor in model.named():
        data = tensor.detach().float().numpy()
        if data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read(path):
    """The model and the tokenizer as a reader finds them in the file: nothing comes from training."""
    r = gguf.GGUFReader(str(path))
    get = lambda key: r.fields[key].contents()
    c = Config(vocabulary=get("llama.vocab_size"), layers=get("llama.block_count"), hidden=get("llama.embedding_length"),
               heads=get("llama.attention.head_count"), kv_heads=get("llama.attention.head_count_kv"),
               head_size=get("llama.rope.dimension_count"), ffn=get("llama.feed_forward_length"), context=get("llama.context_length"),
               rope_base=get("llama.rope.freq_base"), eps=get("llama.attention.layer_norm_rms_epsilon"))
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in r.tensors}
    model = Demo(c).requires_grad_(False)
    assert set(tensors) == {name for name, _ in model.named()}
    model.load_named(tensors)
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = vocab.pre_tokenizer(vocab.LLAMA_BPE)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, types) if k == gguf.TokenType.CONTROL])
    return model, tokenizer


@torch.no_grad()
def perplexity(model, tokenizer, documents):
    """exp of the mean loss over every token but the first of each document, each document on its own."""
    loss, count = 0.0, 0
    for text in documents:
        ids = torch.tensor([tokenizer.encode(text).ids])
        loss += F.cross_entropy(model(ids[:, :-1])[0].double(), ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return math.exp(loss / count), count


@torch.no_grad()
def gap_min(model, prompt, answer):
    """The least distance between the best and the second-best logit along the answer: how sure the text is."""
    logits = model(torch.tensor([prompt + answer]))[0, len(prompt) - 1 :]
    best = logits.topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def expected(model, tokenizer, trained=None):
    documents = HELDOUT.read_text().split("\n\n")
    value, tokens = perplexity(model, tokenizer, documents)
    stop, answers = tokenizer.token_to_id(generate.END), []
    for prompt in PROMPTS:
        asked = tokenizer.encode(generate.render(prompt, "")[0]).ids
        answer = greedy(model, asked, stop)
        answers.append({"prompt": prompt, "prompt_ids": asked, "answer": tokenizer.decode(answer), "answer_ids": answer,
                        "logit_gap_min": round(gap_min(model, asked, answer + [stop]), 4)})
    exact, answer_perplexity = train.evaluate(model, tokenizer, 1000, seed=2)
    result = {
        "file": FILE.name, "bytes": FILE.stat().st_size,
        "heldout": {"file": HELDOUT.name, "documents": len(documents), "tokens": tokens, "perplexity": round(value, 5)},
        "answers_heldout": {"turns": 1000, "perplexity": round(answer_perplexity, 5), "exact": exact},
        "greedy": answers,
    }
    if trained is not None:
        result["heldout"]["perplexity_before_quantisation"] = round(perplexity(trained, tokenizer, documents)[0], 5)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where train.py ran")
    parser.add_argument("--check", action="store_true", help="compare the file with expected.json instead of writing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        found, stated = expected(*read(FILE)), json.loads(EXPECTED.read_text())
        assert [g["answer"] for g in found["greedy"]] == [g["answer"] for g in stated["greedy"]]
        assert abs(found["heldout"]["perplexity"] / stated["heldout"]["perplexity"] - 1) < 1e-4
        print(json.dumps(found["heldout"]), "as stated")
        return
    tokenizer = vocab.load(args.dir / "tokenizer.json")
    trained = Demo(Config(vocabulary=tokenizer.get_vocab_size())).requires_grad_(False)
    state = torch.load(args.dir / "checkpoint.pt", weights_only=True)
    trained.load_state_dict(state["average"])
    write(trained, tokenizer, FILE)
    HELDOUT.write_text("\n\n".join(generate.heldout_documents(seed=3, turns=160, plain=40)))
    model, found = read(FILE)
    assert found.encode(HELDOUT.read_text()).ids == tokenizer.encode(HELDOUT.read_text()).ids
    for token, i in found.get_vocab().items():  # no token that only `ignore_merges` could reach
        text = found.decode([i], skip_special_tokens=False)
        assert "\ufffd" in text or found.encode(text).ids == [i] or any(ch.isspace() or ch.isdigit() for ch in text), token
    result = expected(model, found, trained) | {"steps": state["step"]}
    EXPECTED.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for g in result["greedy"]:
        print(f"{g['prompt']}\n    {g['answer']}   (gap {g['logit_gap_min']})")
    print({k: v for k, v in result.items() if k != "greedy"})


if __name__ == "__main__":
    main()
