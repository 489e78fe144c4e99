//! All tests of the engine in one program, which is linked once; those of memory are processes of their own.

mod common;

mod bench_models;
mod constraint;
mod drafter;
mod drafts;
mod golden;
mod invariance;
mod kv_types;
mod prefix;
mod prompts;
mod read_back;
mod refusals;
