//! All tests of the binary in one program, which is linked once. One part:
//! `cargo nextest run --workspace --test all -E 'test(hub::)'`.

#[cfg(unix)]
#[path = "../../backend-cuda/tests/emulated/mod.rs"]
mod emulated;
mod support;

mod agents;
mod api;
mod auto;
mod bad_models;
mod bench;
mod browser;
mod cards;
mod commands;
mod damaged_files;
mod demo;
mod devices;
mod dialects;
mod doors;
mod draft_model;
mod drain;
mod embeddings;
mod first_request;
mod floods;
mod forged;
mod formats;
mod full_disk;
mod hip;
mod hostile_bodies;
mod housekeeping;
mod hub;
mod interrupts;
mod keys;
mod kv_budget;
mod leaving;
mod long_prompts;
mod namespaces;
mod node_lost;
mod numbers;
mod odd_machines;
mod open;
mod overload;
mod pairing;
mod parallel_calls;
mod perplexity;
mod plan;
mod prometheus;
mod quantize;
mod renamed;
mod replan;
mod routed;
mod scenario_book;
mod speculation;
mod stage_lost;
mod stolen_socket;
mod strangers;
mod swarm;
mod threads;
mod tool_formats;
mod tools;
mod trust_log;
mod update;
mod watching;
mod widths;
mod workers;
