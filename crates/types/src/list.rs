//! Lists that come from elsewhere: how long one is is checked before anything of it is in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use crate::DType;

/// Layers of a model.
pub const LAYERS_MAX: usize = 4096;
/// Stages of one instance.
pub const STAGES_MAX: usize = 256;
/// Shards of one instance, over all its stages.
pub const SHARDS_MAX: usize = 256;
/// Devices of one node.
pub const DEVICES_MAX: usize = 64;
/// Types of weights.
pub const TYPES_MAX: usize = DType::ALL.len();
/// Sequences one instance runs at once, and sequences of one step.
pub const SEQUENCES_MAX: usize = 1024;
/// Candidates reported per sampled token.
pub const TOP_MAX: usize = 20;

/// A list of at most `MAX` elements, for `deserialize_with`. An element takes up to a hundred times its bytes
/// on the wire: a list that is refused only when it is whole has filled the memory.
pub fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

struct Bounded<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let too_many = |count| A::Error::invalid_length(count, &self);
        // A format that counts beforehand is refused at once, any other where the bound is.
        let announced = seq.size_hint().unwrap_or(0);
        if announced > MAX {
            return Err(too_many(announced));
        }
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            if elements.len() == MAX {
                return Err(too_many(MAX + 1));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}
