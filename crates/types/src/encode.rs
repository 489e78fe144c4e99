//! Bytes written as text.

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text as a part of an address: letters, digits, `-._~` and the bytes of `kept` as they are, the others as
/// `%2F`.
pub fn percent_encoded(text: &str, kept: &[u8]) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_two_digits_each() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }

    #[test]
    fn what_means_something_in_an_address_is_escaped_but_for_what_is_kept() {
        assert_eq!(percent_encoded("a/b c~1", b""), "a%2Fb%20c~1");
        assert_eq!(percent_encoded("a/b?ü", b"/"), "a/b%3F%C3%BC");
    }
}
