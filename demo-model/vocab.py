"""The demo model's own byte-level BPE: trained on generated text, cut into words as llama.cpp's `llama-bpe` does.

`llama-bpe` keeps up to three digits together. No merge ever joins two digits (they are cut apart while merges are
learned), so numbers still reach the model digit by digit, which is what lets it add.
"""

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import generate

SPECIAL = ["<|endoftext|>", generate.START, generate.END]
LLAMA_BPE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
             r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCABULARY = 1024


def pre_tokenizer(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def train(seed=7, turns=20000):
    maker = generate.Maker("train", random.Random(f"vocabulary {seed}"), "first")
    texts = [text for _ in range(turns) for text in maker.turn()[1:]]
    texts += (generate.SYSTEMS + ["user", "assistant", "system"]) * (turns // 20)
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer(LLAMA_BPE.replace(r"\p{N}{1,3}", r"\p{N}"))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, min_frequency=2, show_progress=False, special_tokens=SPECIAL,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer(LLAMA_BPE)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    return tokenizer


def load(path):
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        train().save(str(path))
    return Tokenizer.from_file(str(path))
