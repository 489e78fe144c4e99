//! Why steps, sequences and pipelines fail: closed sets with their numbers, for the wire and the log. Whoever
//! shows one makes the sentence.

mod compute;
mod missing;
mod pipeline;
mod pipeline_break;

pub use compute::ComputeFault;
pub use missing::{Missing, MissingPart};
pub(crate) use pipeline::step_0_waits_for;
pub use pipeline::{CacheMismatch, PipelineFailure, TermEnd};
pub use pipeline_break::{PageFault, PipelineBreak, SequenceFault};
