//! The log of trust: who belongs to a cluster, who may change that, and who was removed.
//!
//! Each change is an [`Entry`] that an admin signs. It names the entries it follows, so that the log is a
//! graph: halves of a split cluster go on by themselves, and their entries are put together when they meet.
//! The cluster *is* the hash of its founding entry. Every node checks every entry ([`TrustLog::insert`])
//! wherever it comes from, and then they all come to the same [`View`], in whatever order the entries
//! arrived: no one has to be believed who carries them.
//!
//! What an entry needs when it comes:
//!
//! - its signature, by a node that is an admin after the entries it follows (and by no later word alone);
//! - all the entries it follows: with one of them missing it is a gap, and is asked for again;
//! - an act that is possible there: no one removed is admitted, the only admin is not dismissed.
//!
//! What was signed at the same time on two sides is settled by rules that give the same answer everywhere
//! (the module `judge`):
//!
//! - removals win over admissions and appointments;
//! - what an admin signs while others take its rights away, without its knowing of it, is void: so an entry
//!   cannot be dated back to before a removal;
//! - of admins who remove each other the one that has been admin for longer stays;
//! - what rests on a void appointment is void.
//!
//! Nothing here stops an admin from removing everybody else: an admin is trusted with the members, and that
//! is all it is trusted with. One that signs two entries after the same one, where an honest node would sign
//! them one after the other, is told of ([`TrustLog::forked`]): its key is in two places.
//!
//! Start reading at [`TrustLog`].

#![forbid(unsafe_code)]

mod bits;
mod entry;
mod errors;
mod judge;
mod log;
#[cfg(test)]
mod tests;
mod view;

pub use entry::{Act, Entry, EntryDecodeError, EntryId, Statement};
pub use errors::{ActError, InsertError};
pub use log::{ENTRIES_MAX, Inserted, TrustLog};
pub use view::{Member, ON_SIGHT_MAX, Removal, Role, View};
