//! Which names a model's files may have.
