"""The demo model: a small Llama (RMSNorm, RoPE over interleaved pairs, grouped-query attention, SwiGLU, tied head).

Interleaved pairs (0,1), (2,3), … are what llama.cpp's `llama` architecture rotates, so exported rows need no
permutation. Query, key and value matrices are one parameter here, gate and up another; `named` cuts them apart.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocabulary: int = 1024
    layers: int = 8
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    ffn: int = 512
    context: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-5


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.attn_norm, self.ffn_norm = nn.RMSNorm(c.hidden, eps=c.eps), nn.RMSNorm(c.hidden, eps=c.eps)
        self.attn_qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv_heads) * c.head_size, bias=False)
        self.attn_output = nn.Linear(c.heads * c.head_size, c.hidden, bias=False)
        self.ffn_gate_up = nn.Linear(c.hidden, 2 * c.ffn, bias=False)
        self.ffn_down = nn.Linear(c.ffn, c.hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        c, (B, T, _) = self.c, x.shape
        qkv = self.attn_qkv(self.attn_norm(x)).view(B, T, c.heads + 2 * c.kv_heads, c.head_size)
        q, k, v = qkv.split([c.heads, c.kv_heads, c.kv_heads], 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = (q @ k.transpose(-1, -2)).float() * c.head_size**-0.5 + mask
        mixed = F.softmax(scores, -1).to(v.dtype) @ v
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(B, T, -1))
        gate, up = self.ffn_gate_up(self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn_down(F.silu(gate) * up)


def rotate(x, cos, sin):
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Demo(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.token_embd = nn.Embedding(c.vocabulary, c.hidden)
        self.blk = nn.ModuleList([Block(c) for _ in range(c.layers)])
        self.output_norm = nn.RMSNorm(c.hidden, eps=c.eps)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                small = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * c.layers) ** 0.5 if small else 0.02)
        angles = torch.outer(torch.arange(c.context), c.rope_base ** (-torch.arange(0, c.head_size, 2) / c.head_size))
        self.register_buffer("cos", angles.cos()[:, None], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None], persistent=False)
        self.register_buffer("mask", torch.full((c.context, c.context), float("-inf")).triu(1), persistent=False)

    def forward(self, tokens):
        """Logits [B, T, vocabulary]."""
        T = tokens.shape[1]
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.cos[:T], self.sin[:T], self.mask[:T, :T])
        return F.linear(self.output_norm(x), self.token_embd.weight)

    def named(self):
        """Tensors under their GGUF names. The head is tied: `output.weight` is absent."""
        c = self.c
        for name, p in self.named_parameters():
            if "attn_qkv" in name:
                sizes = [c.heads * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size]
                for part, piece in zip("qkv", p.split(sizes)):
                    yield name.replace("qkv", part), piece
            elif "ffn_gate_up" in name:
                for part, piece in zip(["gate", "up"], p.chunk(2)):
                    yield name.replace("gate_up", part), piece
            else:
                yield name, p

    def load_named(self, tensors):
        """The inverse of `named`."""
        with torch.no_grad():
            for name, p in self.named():
                p.copy_(torch.as_tensor(tensors[name]))


@torch.no_grad()
def greedy(model, prompt, stop, tokens_max=200):
    """Greedy continuation of token ids, without `stop`. Recomputes the prefix each time: plain beats fast here."""
    ids = list(prompt)
    while len(ids) - len(prompt) < tokens_max and len(ids) < model.c.context:
        best = int(model(torch.tensor([ids]))[0, -1].argmax())
        if best == stop:
            break
        ids.append(best)
    return ids[len(prompt):]
