//! Fields of `/v1/embeddings`.

use super::Treatment::{Hint, Honoured};
use super::{Field, Table};

/// `POST /v1/embeddings`
pub const EMBEDDINGS: Table = Table { endpoint: "POST /v1/embeddings", fields: [EMBEDDINGS_FIELDS, &[]] };

/// What `dimensions` does.
pub const DIMENSIONS: &str = "the first so many elements, scaled to length 1: where the model's files say that it was trained \
                              for that, or all of them";
/// What `pooling` does.
pub const POOLING: &str = "extension: `first`, `mean` or `last`; left out, as the model's files say, or else the node's \
                           setting `embedding_pooling`; needed where neither does";

const EMBEDDINGS_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "input": Honoured,
        "a string, token ids, or an array of at most 2048 of these; one that is too long is an error with both numbers";
    "encoding_format": Honoured, "`float` or `base64`";
    "dimensions": Honoured, DIMENSIONS;
    "pooling": Honoured, POOLING;
    "user": Hint, "";
};
