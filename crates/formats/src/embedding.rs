//! What a model's files say of the vectors that it was trained to give.

use exo_types::Pooling;

/// How hidden rows become a vector, and how long it may be. Nothing is known of most models that generate
/// text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EmbeddingInfo {
    /// How rows become one vector.
    pub pooling: Option<Pooling>,
    /// Which beginnings of a vector are vectors, too.
    pub lengths: EmbeddingLengths,
}

/// Which beginnings of a vector are vectors, too (Matryoshka representation learning).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum EmbeddingLengths {
    /// Only the whole.
    #[default]
    Whole,
    /// Every one.
    Any,
    /// Those of these lengths.
    Some(Vec<u32>),
}

impl EmbeddingLengths {
    /// Whether the first `length` elements of `whole` are a vector.
    pub fn allow(&self, length: u32, whole: u32) -> bool {
        match self {
            _ if length == whole => true,
            Self::Whole => false,
            Self::Any => (1..whole).contains(&length),
            Self::Some(lengths) => length < whole && lengths.contains(&length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_vector_where_the_model_was_trained_for_it() {
        let allowed =
            |lengths: EmbeddingLengths| (0..=9).filter(|n| lengths.allow(*n, 8)).collect::<Vec<u32>>();
        assert_eq!(allowed(EmbeddingLengths::Whole), [8]);
        assert_eq!(allowed(EmbeddingLengths::Any), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(allowed(EmbeddingLengths::Some(vec![2, 4, 99])), [2, 4, 8]);
    }
}
