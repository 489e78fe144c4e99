//! Model files on disk: manifest, verify by hash, share with peers, partial copies.
