#!/usr/bin/env python3
"""Writes tests/fixtures/*.json: small tokenizers with the ids the reference implementation gives.

Each fixture holds the same tokenizer twice, as a tokenizer.json and as the tokenizer.ggml.* keys a GGUF file
would carry, and what Hugging Face's `tokenizers` makes of a list of nasty texts. Run it from this folder:

    python make_fixtures.py        (needs `tokenizers`; tested with 0.23)

The training text is generated here, so everything is reproducible and ours.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

OUT = pathlib.Path(__file__).parent / "fixtures"

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

TEXTS = [
    "", " ", "  ", "\n", "\r\n\r\n", "\t\t x", "Hello, world!", " leading", "trailing ", "two  spaces   three",
    "the river and the stone", "don't WE'LL I'm they'RE it'S", "1234567890 12 345 6,789.01", "x=1;y=22;z=333",
    "naïve café Ünïcödé ß ĳ ǆ", "e\u0301 combining a\u0308", "日本語のテキスト 中文字符 한국어", "Привет, мир! Γειά σου",
    "مرحبا بالعالم שלום", "🦀🚀👩‍👩‍👧‍👦🇩🇪 ✨", "zero\u200bwidth\u00a0nbsp\u3000ideographic\ufeff",
    "def f(x):\n    return x ** 2  # sq\n\n\nprint(f(3))\r\n", "{\"a\": [1, 2, {\"b\": null}]}", "<div class=\"x\">&amp;</div>",
    "a" * 50, "ab" * 40, " " * 33 + "x", "\n" * 9 + "end", "...!!!???---", "C:\\dir\\file.txt /usr/bin",
    "<|begin_of_text|>hi<|eot_id|> there", "<|not_a_token|> <|eot_id", "<s>spm</s> <unk>", "▁literal▁mark", "\x00\x01\x7f",
    "ﬁ ligature ½ ² Ⅷ ①", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈", "one\ntwo\n\nthree \n four\n  five", "tool<tool>tool", "the<tool>  <tool> end",
]


def corpus():
    rng = random.Random(7)
    nouns = "river stone lamp bridge garden boat letter window forest clock bread mountain".split()
    verbs = "finds carries follows paints forgets mends watches crosses opens hides".split()
    extra = ["café", "naïve", "Straße", "日本", "привет", "x = 1\n", "return y\n", "don't", "12", "345", "  ", "\n\n"]
    for _ in range(4000):
        a, b, v = rng.choice(nouns), rng.choice(nouns), rng.choice(verbs)
        yield f"the {a} {v} the {b}, and then the {b} {rng.choice(verbs)} {rng.choice(extra)} {rng.randrange(2000)}."


def byte_level(name, pattern, pre, ignore_merges, bos, nfc):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:  # Qwen's tokenizer.json has it; GGUF has no place for it
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(corpus(), BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tok.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    first = tok.token_to_id(SPECIALS[0])
    if bos:
        tok.post_processor = processors.TemplateProcessing(
            single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], first)])
    spec = json.loads(tok.to_str())
    size = tok.get_vocab_size()
    gguf = {
        "model": "gpt2", "pre": pre,
        "tokens": [tok.id_to_token(i) for i in range(size)],
        "token_types": [3 if tok.id_to_token(i) in SPECIALS else 4 if tok.id_to_token(i) == "<tool>" else 1
                        for i in range(size)],
        "merges": [" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]],
        "bos": first, "eos": tok.token_to_id("<|end_of_text|>"), "eot": tok.token_to_id("<|eot_id|>"),
    }
    config = {"bos_token": SPECIALS[0], "eos_token": {"content": "<|end_of_text|>", "special": True}}
    write(name, tok, spec, gguf, config)


def generate_merges(vocab, scores):
    """As transformers' conversion of slow Llama tokenizers does it."""
    merges = []
    for piece, score in scores.items():
        local = [(piece[:i], piece[i:], score) for i in range(1, len(piece))
                 if piece[:i] in vocab and piece[i:] in vocab]
        merges.extend(sorted(local, key=lambda x: (vocab[x[0]], vocab[x[1]])))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(a, b) for a, b, _ in merges]


def sentence_piece(name):
    """A BPE of whole texts with ▁ for spaces, bytes for unknown characters: the shape of Llama 2."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(corpus(), BpeTrainer(vocab_size=330, show_progress=False))
    learnt = sorted(trained.get_vocab().items(), key=lambda kv: kv[1])
    chars = [t for t, _ in learnt if len(t) == 1]
    words = [t for t, _ in learnt if len(t) > 1]
    head = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokens = head + words + chars + ["<tool>"]
    scores = [0.0] * len(head) + [-float(i) for i in range(len(words))] + [-1e9] * len(chars) + [0.0]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(chars)) + [4]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = generate_merges(vocab, {t: s for t, s, k in zip(tokens, scores, types) if k == 1})
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ["<unk>", "<s>", "</s>"]])
    tok.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    gguf = {"model": "llama", "pre": None, "tokens": tokens, "scores": scores, "token_types": types, "merges": [],
            "bos": 1, "eos": 2, "unk": 0}
    write(name, tok, json.loads(tok.to_str()), gguf, {"bos_token": "<s>", "eos_token": "</s>"})


def write(name, tok, spec, gguf, config):
    plain = Tokenizer.from_str(json.dumps(spec))
    plain.encode_special_tokens = True
    cases = []
    for text in TEXTS:
        ids = tok.encode(text, add_special_tokens=False).ids
        cases.append({
            "text": text, "ids": ids,
            "ids_plain": plain.encode(text, add_special_tokens=False).ids,
            "ids_framed": tok.encode(text, add_special_tokens=True).ids,
            "decoded": tok.decode(ids, skip_special_tokens=False),
            "decoded_skip": tok.decode(ids, skip_special_tokens=True),
        })
    doc = {"tokenizer_json": spec, "tokenizer_config": config, "gguf": gguf, "cases": cases}
    (OUT / f"{name}.json").write_text(json.dumps(doc, ensure_ascii=True, separators=(",", ":")) + "\n")


OUT.mkdir(exist_ok=True)
byte_level("llama_bpe", LLAMA3, "llama-bpe", True, True, False)
byte_level("qwen2", QWEN2, "qwen2", False, False, True)
sentence_piece("spm")
