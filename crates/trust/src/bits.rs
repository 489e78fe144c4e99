//! Sets of entries, by their number in the log.

/// A set of small numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// The numbers below `len`.
    pub(crate) fn up_to(len: usize) -> Self {
        let mut bits = Self::default();
        (0..len).for_each(|number| bits.insert(number));
        bits
    }

    pub(crate) fn insert(&mut self, number: usize) {
        let word = number / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    pub(crate) fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    pub(crate) fn insert_all(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at * 64 + bit)
        })
    }
}
