//! Four words that two people read to each other: the same on both machines exactly if no one stands between.

/// Words for a secret that only the two machines have, the same from either side. 32 bits: enough for two
/// people in one room to catch a mistaken or planted key, if whoever stands between cannot try many secrets.
pub fn check_words(secret: &[u8; 32]) -> [&'static str; 4] {
    let hash = blake3::derive_key("exo check words v2", secret);
    std::array::from_fn(|i| WORDS[usize::from(hash[i])])
}

/// One word per byte: short, common, told apart by their first four letters.
#[rustfmt::skip]
const WORDS: [&str; 256] = [
    "acorn", "actor", "album", "amber", "anchor", "angle", "apple", "april", "arrow", "atlas", "attic", "autumn",
    "bacon", "badge", "baker", "balloon", "bamboo", "banjo", "barrel", "basket", "beacon", "beetle", "bell", "berry",
    "bicycle", "birch", "bishop", "blanket", "bottle", "branch", "bread", "brick", "bridge", "broom", "bucket", "button",
    "cabin", "cactus", "camel", "candle", "canoe", "captain", "carpet", "castle", "cedar", "cello", "chalk", "cherry",
    "circle", "clay", "clock", "cloud", "clover", "cobalt", "coffee", "comet", "copper", "coral", "cotton", "cradle",
    "crane", "cricket", "crown", "cube", "curtain", "daisy", "dancer", "delta", "desert", "diamond", "dinner", "dolphin",
    "donkey", "dragon", "drum", "duke", "eagle", "early", "earth", "easel", "echo", "elbow", "ember", "engine",
    "fabric", "falcon", "farmer", "feather", "fence", "fiddle", "finger", "flame", "flute", "forest", "fossil", "fountain",
    "fox", "frost", "garden", "garlic", "gate", "giant", "ginger", "glacier", "globe", "glove", "goblet", "gold",
    "grape", "gravel", "guitar", "hammer", "harbor", "harp", "hazel", "helmet", "hermit", "hill", "honey", "horse",
    "hotel", "house", "igloo", "indigo", "iron", "island", "ivory", "jacket", "jade", "jaguar", "jelly", "jewel",
    "jigsaw", "jungle", "kayak", "kettle", "king", "kitchen", "kite", "knight", "ladder", "lagoon", "lamp", "lantern",
    "laurel", "lemon", "lettuce", "library", "lily", "lime", "linen", "lion", "lizard", "lobster", "lotus", "magnet",
    "mango", "maple", "marble", "market", "meadow", "melon", "metal", "mirror", "moon", "mortar", "mosaic", "mountain",
    "muffin", "museum", "napkin", "needle", "nest", "nickel", "night", "north", "novel", "nutmeg", "oasis", "ocean",
    "olive", "onion", "opera", "orange", "orchid", "otter", "owl", "paddle", "painter", "palace", "panda", "paper",
    "parrot", "pearl", "pebble", "pencil", "pepper", "piano", "pigeon", "pilot", "pine", "planet", "plum", "pocket",
    "pony", "poppy", "potato", "prism", "pumpkin", "puzzle", "quartz", "queen", "quilt", "rabbit", "radio", "rain",
    "raven", "ribbon", "river", "robin", "rocket", "rope", "rose", "ruby", "saddle", "sail", "salmon", "sand",
    "scarf", "school", "shell", "shield", "silver", "sketch", "snow", "spider", "spoon", "spring", "statue", "stone",
    "sugar", "summit", "swan", "table", "teapot", "temple", "thunder", "tiger", "timber", "tower", "tulip", "turtle",
    "umbrella", "valley", "velvet", "violin",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_told_apart_by_their_first_four_letters() {
        let starts: BTreeSet<_> = WORDS.iter().map(|w| &w[..w.len().min(4)]).collect();
        assert_eq!(starts.len(), 256);
    }

    #[test]
    fn another_secret_has_other_words() {
        assert_eq!(check_words(&[1; 32]), check_words(&[1; 32]));
        assert_ne!(check_words(&[1; 32]), check_words(&[2; 32]));
    }
}
