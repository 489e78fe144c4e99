//! Logits to token: greedy, temperature, top-k, top-p, min-p, penalties, from a seed.
