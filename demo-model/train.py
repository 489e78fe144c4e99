"""Trains the demo model on generated text. Killed at any moment it goes on from the last checkpoint.

    nice -n 19 python train.py --dir /tmp/demo-train --steps 4000 --until 2400 --mix first
    nice -n 19 python train.py --dir /tmp/demo-train --steps 5600 --until 4100 --mix second
    nice -n 19 python train.py --dir /tmp/demo-train --steps 5200 --mix third
    nice -n 19 python train.py --dir /tmp/demo-train --steps 5700 --rate 5e-3 --mix fourth
    python export.py --dir /tmp/demo-train

Batches depend on (seed, step) only, so an interrupted run sees the same text as an uninterrupted one. What is
exported is an exponential average of the weights, which is presentable long before the learning rate has fallen.
"""

import argparse
import copy
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import generate
import vocab
from model import Config, Demo

USER_WEIGHT = 0.1  # what users type is learned a little: it shapes the embedding, it is never generated


def row(maker, tokenizer, length):
    """Token ids and loss weights of `length` + 1 tokens: one opening, then turns until it is full."""
    ids, weights = [], []
    def add(text, weight):
        new = tokenizer.encode(text).ids
        ids.extend(new)
        weights.extend([weight] * len(new))
    for text, weight in generate.document(maker):
        add(text, weight)
    while len(ids) <= length:
        asked, answered = generate.render(*maker.turn()[1:])
        add(asked, USER_WEIGHT)
        add(answered, 1.0)
    return ids[: length + 1], weights[: length + 1]


def batch(tokenizer, seed, step, rows, length, mix):
    maker = generate.Maker("train", random.Random(f"train {seed} {step}"), mix)
    made = [row(maker, tokenizer, length) for _ in range(rows)]
    return torch.tensor([r[0] for r in made]), torch.tensor([r[1] for r in made])


@torch.no_grad()
def evaluate(model, tokenizer, turns=400, seed=1):
    """Share of answers that greedy decoding gets exactly right, by task, and perplexity of held-out answers.

    Greedy text equals the wanted answer exactly when every wanted token is the most likely one after its prefix."""
    maker = generate.Maker("heldout", random.Random(f"evaluate {seed}"))
    right, seen, loss, count = {}, {}, 0.0, 0
    for _ in range(turns):
        task, question, answer = maker.turn()
        asked, answered = (tokenizer.encode(t).ids for t in generate.render(question, answer))
        ids = torch.tensor([asked + answered[:-1]])  # the newline after the end mark is never generated
        logits = model(ids[:, :-1]).float()[0, len(asked) - 1 :]
        wanted = ids[0, len(asked) :]
        loss += F.cross_entropy(logits, wanted, reduction="sum").item()
        count += len(wanted)
        seen[task] = seen.get(task, 0) + 1
        right[task] = right.get(task, 0) + int((logits.argmax(-1) == wanted).all())
    exact = {t: f"{right[t]}/{seen[t]}" for t in sorted(seen) if t != "story"}  # a story has many right tellings
    return exact, math.exp(loss / count)


def rate(step, args):
    if step < args.warmup:
        return args.rate * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def save(path, **state):
    """A checkpoint is whole or absent: written beside, then renamed."""
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="tokenizer, checkpoint and log live here")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--until", type=int, help="end at this step of the schedule")
    parser.add_argument("--mix", choices=list(generate.Maker.MIXES), default="fourth", help="shares of the tasks")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step")
    parser.add_argument("--length", type=int, default=256, help="tokens per row; the last tenth of the steps doubles it")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = vocab.load(args.dir / "tokenizer.json")
    model = Demo(Config(vocabulary=tokenizer.get_vocab_size()))
    average = copy.deepcopy(model).requires_grad_(False)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.97), fused=True)
    start, path = 0, args.dir / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, vocabulary {model.c.vocabulary}, from step {start}", flush=True)

    @torch.compile
    def loss_of(ids, weights):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        return (each * weights).sum() / weights.sum()

    began, smooth = time.time(), None
    last = min(args.steps, args.until or args.steps)
    for step in range(start, last):
        length = args.length * 2 if step >= args.steps * 9 // 10 else args.length
        ids, weights = batch(tokenizer, args.seed, step, args.tokens // length, length, args.mix)
        for group in optimiser.param_groups:
            group["lr"] = rate(step, args)
        loss = loss_of(ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        keep = min(0.99, (step + 1) / (step + 10))
        for mean, p in zip(average.parameters(), model.parameters()):
            mean.lerp_(p.detach(), 1 - keep)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if (step + 1) % 25 == 0:
            speed = (step + 1 - start) * args.tokens / (time.time() - began)
            print(f"step {step + 1} loss {smooth:.4f} rate {rate(step, args):.2e} {speed:.0f} tokens/s", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == last:
            save(path, model=model.state_dict(), average=average.state_dict(), optimiser=optimiser.state_dict(), step=step + 1)
        if (step + 1) % 400 == 0 or step + 1 == last:
            exact, perplexity = evaluate(average, tokenizer, 1000 if step + 1 == last else 250)
            print(f"held out: exact {exact}, answer perplexity {perplexity:.4f}", flush=True)


if __name__ == "__main__":
    main()
