//! What the node's logic asks of the world, carried out: one file for each thing that is touched.
//!
//! Nothing here decides. A request comes with an id, is carried out, and its answer bears the same id.

mod journal;
