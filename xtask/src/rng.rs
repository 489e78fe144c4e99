//! Numbers drawn from a seed: the same in each run, on each machine.

/// A generator (xorshift).
pub struct Rng(u64);

impl Rng {
    /// From this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One of the numbers below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() >> 33) as usize % end.max(1)
    }
}
