//! All tests of the server in one program, which is linked once.

mod common;

mod dashboard;
mod embeddings;
mod entry;
mod live;
mod messages;
mod metrics;
mod ollama;
mod outlive;
mod requests;
mod responses;
mod resume;
mod routes;
mod security;
mod streaming;
mod tokens;
