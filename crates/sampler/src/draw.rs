//! One draw from the kept candidates, decided by (seed, position).

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::filter::Candidates;

/// Separates our draws from any other use of the same seed.
const DOMAIN: [u8; 24] = *b"exo sampler draw v1\0\0\0\0\0";

/// A number in `[0, 1)`, the same for the same arguments on every machine: a ChaCha block keyed by the seed,
/// at the stream of the position.
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..].copy_from_slice(&DOMAIN);
    let mut rng = ChaCha12Rng::from_seed(key);
    rng.set_stream(position);
    // 53 bits: every value is exact in f64 and none rounds up to 1.
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The candidate on which `u` falls when the unit interval is cut in proportion to
/// `exp(logit / temperature)`.
pub(crate) fn draw(candidates: &mut Candidates, logits: &[f32], temperature: f32, u: f64) -> u32 {
    let (_, sum) = candidates.weigh(logits, temperature);
    let Candidates { ids, weights } = candidates;
    let mut left = u * sum;
    for (&id, &weight) in ids.iter().zip(weights.iter()) {
        let weight = f64::from(weight);
        if left < weight {
            return id;
        }
        left -= weight;
    }
    // Rounding can leave a last sliver of the interval to nobody: it belongs to the last that had any weight.
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    ids[last]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draw_is_a_constant_of_the_format() {
        // Text already sent must not change with an upgrade: these values are part of the protocol.
        let seen = [uniform(0, 0), uniform(0, 1), uniform(1, 0)].map(|u| (u * 1e9) as u64);
        assert_eq!(seen, [867_590_802, 706_157_478, 299_447_332]);
    }

    #[test]
    fn the_sliver_at_the_end_goes_to_a_token_with_weight() {
        let mut candidates = Candidates { ids: vec![0, 1, 2], weights: Vec::new() };
        assert_eq!(draw(&mut candidates, &[0.0, 0.0, -3e38], 1.0, 1.0), 1);
    }
}
