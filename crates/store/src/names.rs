//! Which names a model's files may have. They come from peers and become paths.

/// Longer names exist on no common file system.
const NAME_BYTES_MAX: usize = 200;
/// Names Windows keeps for devices, with any extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// Why `name` cannot be a single, plain path component on every system; `None` if it can.
pub(crate) fn refusal(name: &str) -> Option<&'static str> {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let device =
        DEVICES.iter().any(|d| stem.strip_prefix(d).is_some_and(|rest| rest.len() <= 1 && is_digits(rest)));
    match name {
        "" => Some("it is empty"),
        _ if name.len() > NAME_BYTES_MAX => Some("it is longer than 200 bytes"),
        _ if name.starts_with('.') => Some("it starts with a dot"),
        _ if name.ends_with(['.', ' ']) => Some("it ends with a dot or a space"),
        _ if name.chars().any(|c| c.is_control() || "/\\:*?\"<>|".contains(c)) => {
            Some("it has a character that is not allowed in a file name")
        }
        _ if device => Some("it is the name of a device"),
        _ => None,
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn only_plain_single_components_pass() {
        for good in
            ["model.safetensors", "tiny llama-Q4_0.gguf", "model-00001-of-00002.safetensors", "console.gguf"]
        {
            assert_eq!(refusal(good), None, "{good}");
        }
        let long = "a".repeat(201);
        let bad = [
            "", ".", "..", "../a", "/a", "a/b", "a\\b", "C:a", "a\0b", "a\nb", ".hidden", "a.", "nul.gguf",
            "COM1", &long,
        ];
        for name in bad {
            assert!(refusal(name).is_some(), "{name:?}");
        }
    }
}
