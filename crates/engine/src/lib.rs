//! One shard at work: weights, KV cache, prefill and decode steps, batching.
