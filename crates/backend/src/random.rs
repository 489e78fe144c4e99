//! Reproducible numbers for cases: the same on every machine, different for every seed.

/// Splitmix64. Source: Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Roughly normal with this standard deviation: the sum of four uniform numbers.
    pub(crate) fn normal(&mut self, deviation: f32) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        let sum: f32 = (0..4).map(|_| uniform(self.next())).sum();
        sum * 3.0f32.sqrt() * deviation
    }

    pub(crate) fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal(deviation)).collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
