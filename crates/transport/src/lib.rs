//! Authenticated streams of bytes between nodes: QUIC, TLS over TCP, and an in-memory twin.
