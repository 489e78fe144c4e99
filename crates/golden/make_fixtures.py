#!/usr/bin/env python3
"""Write the golden fixtures: tiny random models with the logits transformers computes for them.

    pip install numpy gguf safetensors torch transformers
    python crates/golden/make_fixtures.py            # rewrites crates/golden/fixtures
    python crates/golden/make_fixtures.py qwen3-f16  # only this one

A fixture is a folder `crates/golden/fixtures/NAME` with

    config.json, *.safetensors, tokenizer.json    the model as a Hugging Face folder (but for quantised ones)
    model.gguf                                    the same weights as GGUF, named as llama.cpp names them
    reference.json                                prompt, greedy tokens with gaps, standard deviation of the logits
    logits.f32                                    [rows, vocab] logits, little endian: of the prompt, and of quantised
                                                  fixtures also of the first tokens of the answer

The reference is transformers on the processor, float32, eager attention. Quantised fixtures hold a GGUF alone;
their reference runs on the weights that gguf-py dequantises from it, so that only the arithmetic on blocks is in
doubt. Seeds are searched until no greedy step is closer than ten times the error we allow, so every token counts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

OUT = Path(__file__).parent / "fixtures"
PROMPT_TOKENS = 24
ANSWER_TOKENS = 64
FORCED_TOKENS = 16  # of the answer, whose logits a quantised fixture holds too
RANDOM_BLOCKS_SEED = 0
LOGIT_ERROR = 1e-3  # of the standard deviation: what the tests allow
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Shape:
    name: str
    arch: str  # Hugging Face's model_type
    dtype: str  # F32, F16, BF16, or a GGUF block type
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    new_style: bool  # rope_parameters as transformers 5 writes them, else rope_theta and rope_scaling
    shards: int = 1
    theta: float = 10000.0
    eps: float = 1e-5
    scaling: dict | None = None
    window: int | None = None
    extra: dict = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # of single tensors, by part of their Hugging Face name

    @property
    def quantised(self) -> bool:
        return self.dtype not in DTYPES

    def type_of(self, hf: str) -> str:
        return next((t for part, t in self.types.items() if part in hf), self.dtype)


SHAPES = [
    # All that is unusual about a llama: untied, H*D != C, three query heads per key head, llama3 scaling whose
    # three regimes all occur, an index over three files.
    Shape("llama-f32", "llama", "F32", 3, 36, 40, 6, 2, 8, 131, False, True, shards=3, scaling=LLAMA3),
    # An odd number of heads sharing one key head, a width that is no multiple of 8 lanes' usual blocks.
    Shape("llama-bf16-tied", "llama", "BF16", 4, 36, 44, 3, 1, 12, 149, True, False, theta=500000.0),
    # The prompt is three windows long.
    Shape("mistral-f16-window", "mistral", "F16", 2, 32, 64, 4, 2, 8, 127, False, False, window=8),
    Shape("qwen2-bf16", "qwen2", "BF16", 2, 40, 56, 5, 1, 8, 137, True, False, theta=1e6, eps=1e-6,
          extra={"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 2}),
    Shape("qwen3-f16", "qwen3", "F16", 2, 32, 64, 6, 3, 16, 139, True, True, theta=1e6, eps=1e-6,
          extra={"use_sliding_window": False, "sliding_window": None, "attention_bias": False}),
    Shape("qwen3-bf16-untied", "qwen3", "BF16", 2, 40, 48, 2, 1, 32, 113, False, False, shards=2, theta=1e6, eps=1e-6,
          extra={"use_sliding_window": False, "sliding_window": None, "attention_bias": False}),
    Shape("llama-q8_0", "llama", "Q8_0", 2, 64, 96, 4, 2, 16, 131, False, True),
    Shape("llama-q4_0", "llama", "Q4_0", 2, 64, 96, 4, 2, 16, 131, False, True),
    Shape("qwen3-q8_0", "qwen3", "Q8_0", 2, 32, 64, 6, 3, 16, 139, True, True, theta=1e6, eps=1e-6),
    Shape("qwen3-q4_0", "qwen3", "Q4_0", 2, 32, 64, 6, 3, 16, 139, True, True, theta=1e6, eps=1e-6),
    # The other 32-blocks, each where it would be noticed.
    Shape("llama-q4_1-q5", "llama", "Q4_1", 2, 32, 64, 4, 2, 16, 131, False, True,
          types={"q_proj": "Q5_0", "v_proj": "Q5_1", "down_proj": "Q5_0", "lm_head": "Q5_1"}),
    # Every K-quant in one layer. Rows of 64 do not fill a block of 256 and stay Q8_0, as llama.cpp has it.
    Shape("llama-k-quants", "llama", "Q4_K", 1, 256, 256, 4, 2, 16, 97, True, True,
          types={"embed": "Q6_K", "k_proj": "Q2_K", "v_proj": "Q6_K", "o_proj": "Q8_0", "up_proj": "Q3_K",
                 "down_proj": "Q5_K"}),
]


# ---------------------------------------------------------------- weights

LAYER_NAMES = {  # Hugging Face -> GGUF
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def shapes_of(s: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor by its Hugging Face name."""
    c, q, kv = s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab, c)}
    for i in range(s.layers):
        layer = {
            "input_layernorm.weight": (c,), "self_attn.q_proj.weight": (q, c), "self_attn.k_proj.weight": (kv, c),
            "self_attn.v_proj.weight": (kv, c), "self_attn.o_proj.weight": (c, q),
            "post_attention_layernorm.weight": (c,), "mlp.gate_proj.weight": (s.ffn, c),
            "mlp.up_proj.weight": (s.ffn, c), "mlp.down_proj.weight": (c, s.ffn),
        }
        if s.arch == "qwen2":
            layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
        if s.arch == "qwen3":
            layer |= {f"self_attn.{p}_norm.weight": (s.head_dim,) for p in "qk"}
        out |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    out["model.norm.weight"] = (c,)
    if not s.tied:
        out["lm_head.weight"] = (s.vocab, c)
    return out


def random_weights(s: Shape, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, *s.name.encode()])
    weights = {}
    for name, shape in shapes_of(s).items():
        noise = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith(".bias"):
            weights[name] = noise * np.float32(0.5)
        elif len(shape) == 1:
            weights[name] = 1 + noise * np.float32(0.2)  # norms that are all one would hide a missing one
        else:
            # Larger than a trained model's, so that attention is sharp and layers matter.
            weights[name] = noise * np.float32(1.5 * shape[1] ** -0.5)
    return weights


def gguf_name(hf: str) -> str:
    if hf in TOP_NAMES:
        return TOP_NAMES[hf]
    _, _, layer, rest = hf.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def permute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to interleaved pairs, as llama.cpp stores Q and K of a llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_heads(s: Shape, hf: str) -> int:
    """How many heads GGUF reorders in this tensor; 0 for none."""
    if s.arch not in ("llama", "mistral"):
        return 0
    return s.heads if ".q_proj." in hf else s.kv_heads if ".k_proj." in hf else 0


# ---------------------------------------------------------------- files


def hf_config(s: Shape) -> dict:
    names = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
             "qwen3": "Qwen3ForCausalLM"}
    config = {
        "architectures": [names[s.arch]], "model_type": s.arch, "hidden_size": s.hidden, "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "vocab_size": s.vocab, "max_position_embeddings": 256, "rms_norm_eps": s.eps, "hidden_act": "silu",
        "tie_word_embeddings": s.tied, "bos_token_id": 1, "eos_token_id": [2, 3] if s.new_style else 2,
        "initializer_range": 0.02, "use_cache": True,
    }
    if s.arch != "qwen2":  # qwen2 configurations do not name it
        config["head_dim"] = s.head_dim
    if s.arch == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    if s.arch == "mistral":
        config["sliding_window"] = s.window
    config |= s.extra
    stored = {"F32": "float32", "F16": "float16"}.get(s.dtype, "bfloat16")
    if s.new_style:
        config["rope_parameters"] = {"rope_theta": s.theta, **(s.scaling or {"rope_type": "default"})}
        config |= {"dtype": stored, "transformers_version": "5.0.0"}
    else:
        config |= {"rope_theta": s.theta, "rope_scaling": s.scaling}
        config |= {"torch_dtype": stored, "transformers_version": "4.46.0"}
    return config


def write_hf(s: Shape, weights: dict[str, np.ndarray], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(w.copy()).to(DTYPES[s.dtype]) for name, w in weights.items()}
    dump(folder / "config.json", hf_config(s))
    vocab = {f"t{i}": i for i in range(s.vocab)}
    dump(folder / "tokenizer.json", {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}})
    if s.shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, index = list(tensors), {}
    for i in range(s.shards):
        file = f"model-{i + 1:05}-of-{s.shards:05}.safetensors"
        part = names[i :: s.shards]  # spread, so that a layer's tensors are in different files
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        index |= {n: file for n in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    dump(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def write_gguf(s: Shape, weights: dict[str, np.ndarray], path: Path) -> None:
    arch = "llama" if s.arch == "mistral" else s.arch
    w = gguf.GGUFWriter(path, arch)
    w.add_name(s.name)
    w.add_context_length(256)
    w.add_embedding_length(s.hidden)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_layer_norm_rms_eps(s.eps)
    w.add_rope_freq_base(s.theta)
    w.add_rope_dimension_count(s.head_dim)
    w.add_vocab_size(s.vocab)
    if s.window:
        w.add_sliding_window(s.window)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe" if arch == "llama" else "qwen2")
    w.add_token_list([f"t{i}" for i in range(s.vocab)])
    w.add_token_types([gguf.TokenType.NORMAL] * s.vocab)
    w.add_token_merges(["t 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    if s.scaling:
        w.add_tensor("rope_freqs.weight", llama3_factors(s))
    for name, value in weights.items():
        value = permute(value, heads) if (heads := rope_heads(s, name)) else value
        add_tensor(w, gguf_name(name), value, "F32" if value.ndim == 1 else s.type_of(name))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add_tensor(w: gguf.GGUFWriter, name: str, value: np.ndarray, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    if dtype == "F32":
        w.add_tensor(name, value.astype(np.float32))
    elif dtype == "F16":
        w.add_tensor(name, value.astype(np.float16))
    elif dtype in K_QUANTS:
        w.add_tensor(name, random_blocks(name, value.shape, dtype), raw_dtype=kind)
    else:
        w.add_tensor(name, quantize(value.astype(np.float32), kind), raw_dtype=kind)


# Where the f16 scales of a block are: of the values, then (if any) of the minima, and what a minimum's scale must be
# in terms of the value's for values to be around zero.
K_QUANTS = {"Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5),
            "Q6_K": (208, None, 0)}


def random_blocks(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A matrix of random blocks: gguf-py reads K-quants but does not write them, and any bits are a valid block."""
    kind = gguf.GGMLQuantizationType[dtype]
    rows, cols = shape
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng([RANDOM_BLOCKS_SEED, *name.encode()])
    blocks = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    # No two blocks share a scale: one that is read from the wrong block shows.
    factors = rng.uniform(0.5, 1.5, blocks.shape[:2])
    at, minimum, ratio = K_QUANTS[dtype]

    def scaled(d: float) -> np.ndarray:
        for offset, factor in ((at, d), (minimum, d * ratio)):
            if offset is not None:
                half = (factors * factor).astype(np.float16)
                blocks[:, :, offset : offset + 2] = half[..., None].view(np.uint8)
        return blocks.reshape(rows, -1)

    return scaled(float(1.5 * cols**-0.5 / dequantize(scaled(1.0), kind).std()))


def llama3_factors(s: Shape) -> np.ndarray:
    """What convert_hf_to_gguf.py stores for llama3 scaling: a divisor per frequency."""
    p, factors = s.scaling, []
    low, high = (p["original_max_position_embeddings"] / p[k] for k in ("low_freq_factor", "high_freq_factor"))
    for freq in s.theta ** (-np.arange(0, s.head_dim, 2, dtype=np.float64) / s.head_dim):
        wavelength = 2 * np.pi / freq
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(p["factor"])
        else:
            smooth = (p["original_max_position_embeddings"] / wavelength - p["low_freq_factor"]) / (
                p["high_freq_factor"] - p["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / p["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def read_back(s: Shape, path: Path) -> dict[str, np.ndarray]:
    """The weights of a GGUF file as float32 under their Hugging Face names."""
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    weights = {}
    for name, shape in shapes_of(s).items():
        t = stored[gguf_name(name)]
        value = dequantize(t.data, t.tensor_type).reshape(shape)
        weights[name] = unpermute(value, heads) if (heads := rope_heads(s, name)) else value
    return weights


def rounded(s: Shape, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights as the files hold them."""
    return {n: torch.from_numpy(w).to(DTYPES[s.dtype]).float().numpy() for n, w in weights.items()}


def dump(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


# ---------------------------------------------------------------- reference


def build(s: Shape, weights: dict[str, np.ndarray]) -> torch.nn.Module:
    config = AutoConfig.for_model(**hf_config(s))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    state = {n: torch.from_numpy(w.copy()) for n, w in weights.items()}
    if s.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


@torch.inference_mode()
def run(model: torch.nn.Module, prompt: list[int]) -> tuple[np.ndarray, list[int], list[float]]:
    """Logits of prompt and answer, the greedy answer, and how far each of its tokens is ahead of the next best."""
    out = model(torch.tensor([prompt]), use_cache=True)
    rows, cache, last = [out.logits[0]], out.past_key_values, out.logits[0, -1]
    tokens, gaps = [], []
    for _ in range(ANSWER_TOKENS):
        top = torch.topk(last, 2).values
        tokens.append(int(last.argmax()))
        gaps.append(float(top[0] - top[1]))
        out = model(torch.tensor([[tokens[-1]]]), past_key_values=cache, use_cache=True)
        cache, last = out.past_key_values, out.logits[0, -1]
        rows.append(out.logits[0])
    return torch.cat(rows).numpy(), tokens, gaps


def make(s: Shape) -> str:
    folder = OUT / s.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for seed in range(400):
        weights = random_weights(s, seed)
        if s.quantised:
            write_gguf(s, weights, folder / "model.gguf")
            weights = read_back(s, folder / "model.gguf")
        else:
            weights = rounded(s, weights)
        prompt = np.random.default_rng(seed).integers(4, s.vocab, PROMPT_TOKENS).tolist()
        logits, tokens, gaps = run(build(s, weights), prompt)
        std = float(logits[:PROMPT_TOKENS].std())
        if min(gaps) > 12 * LOGIT_ERROR * std and len(set(tokens)) > 12:
            break
    else:
        raise SystemExit(f"{s.name}: no seed without a near tie")
    if not s.quantised:
        write_hf(s, weights, folder)
        write_gguf(s, weights, folder / "model.gguf")
    # Blocks are computed in another order of rounding: there the drift over forced tokens is bounded.
    kept = logits[: PROMPT_TOKENS + FORCED_TOKENS] if s.quantised else logits[:PROMPT_TOKENS]
    kept.astype("<f4").tofile(folder / "logits.f32")
    dump(folder / "reference.json", {
        "name": s.name, "arch": s.arch, "dtype": s.dtype, "hugging_face": not s.quantised, "layers": s.layers,
        "hidden": s.hidden, "vocab": s.vocab, "seed": seed, "prompt": prompt, "logit_rows": len(kept),
        "logit_std": std, "greedy": tokens, "gaps": [round(g, 6) for g in gaps],
    })
    size = sum(f.stat().st_size for f in folder.iterdir())
    return f"{s.name:20} seed {seed:3}  std {std:.3f}  least gap {min(gaps):.4f}  {len(set(tokens))} tokens  {size} B"


def main() -> None:
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    for shape in SHAPES:
        if not wanted or shape.name in wanted:
            print(make(shape), flush=True)


if __name__ == "__main__":
    main()
