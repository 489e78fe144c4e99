//! What a JSON document will take in memory, counted while its bytes come: one that is too deep or has too
//! many parts is refused before it is kept, and one that is kept has its room before it is parsed.
//!
//! **Architecture invariant:** decides nothing about what is valid. It may count too much in bytes that are
//! no JSON, never too little in bytes that are.

/// Arrays and objects in one another.
const NESTING_MAX: usize = 120;
/// Arrays and objects: 16,384 messages of four each.
const CONTAINERS_MAX: usize = 64 << 10;
/// Values: a prompt of as many token ids.
const VALUES_MAX: usize = 1 << 20;
/// What a value takes beside its text, in a list that has just doubled.
const VALUE_BYTES: usize = 144;
/// What a name in an object takes beside that.
const NAME_BYTES: usize = 128;
/// What an array or object takes beside that: its table, and room for more entries than it has.
const CONTAINER_BYTES: usize = 448;

/// A document is refused for what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooMuch {
    /// At this byte it is more than [`NESTING_MAX`] deep.
    Depth(usize),
    /// It holds more than [`CONTAINERS_MAX`].
    Containers,
    /// It holds more than [`VALUES_MAX`].
    Values,
}

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Depth(at) => write!(
                f,
                "the body is not valid JSON for exo: more than {NESTING_MAX} arrays and objects in one another at byte {at}"
            ),
            Self::Containers => {
                write!(f, "the body holds more than {CONTAINERS_MAX} arrays and objects; send fewer messages")
            }
            Self::Values => write!(f, "the body holds more than {VALUES_MAX} values; send fewer"),
        }
    }
}

/// Where in the text the scan is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum At {
    #[default]
    Outside,
    String,
    Escape,
}

/// A scan of one document, from its first byte on.
#[derive(Debug, Default)]
pub struct Scan {
    at: At,
    bytes: usize,
    depth: usize,
    containers: usize,
    values: usize,
    names: usize,
}

impl Scan {
    /// Goes on with the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), TooMuch> {
        for &byte in bytes {
            self.bytes += 1;
            match (self.at, byte) {
                (At::Escape, _) | (At::Outside, b'"') => self.at = At::String,
                (At::String, b'\\') => self.at = At::Escape,
                (At::String, b'"') => self.at = At::Outside,
                (At::String, _) => {}
                (At::Outside, b'[' | b'{') => self.open()?,
                (At::Outside, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                (At::Outside, b':') => self.names += 1,
                (At::Outside, b',') => self.value()?,
                (At::Outside, _) => {}
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), TooMuch> {
        (self.depth, self.containers) = (self.depth + 1, self.containers + 1);
        match () {
            () if self.depth > NESTING_MAX => Err(TooMuch::Depth(self.bytes)),
            () if self.containers > CONTAINERS_MAX => Err(TooMuch::Containers),
            // Its first value; the others stand behind commas.
            () => self.value(),
        }
    }

    fn value(&mut self) -> Result<(), TooMuch> {
        self.values += 1;
        if self.values > VALUES_MAX { Err(TooMuch::Values) } else { Ok(()) }
    }

    /// Bytes that the document takes beside its texts.
    pub fn document_bytes(&self) -> usize {
        self.values * VALUE_BYTES + self.names * NAME_BYTES + self.containers * CONTAINER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(parts: &[&str]) -> Result<(usize, usize, usize), TooMuch> {
        let mut scan = Scan::default();
        parts.iter().try_for_each(|part| scan.feed(part.as_bytes()))?;
        Ok((scan.containers, scan.values, scan.names))
    }

    #[test]
    fn what_stands_in_strings_is_text_wherever_the_bytes_are_parted() {
        let text = r#"{"a\"[{,:": ["[\\", "]\u0022{", 1, {}], "b": null}"#;
        assert_eq!(scan(&[text]), Ok((3, 7, 2)));
        for at in 0..text.len() {
            assert_eq!(scan(&[&text[..at], &text[at..]]), Ok((3, 7, 2)), "{at}");
        }
    }

    #[test]
    fn each_bound_is_kept_to_the_last_one_and_no_further() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(scan(&[&nested(NESTING_MAX), &nested(NESTING_MAX)]).is_ok(), "beside each other");
        assert_eq!(scan(&[&nested(NESTING_MAX + 1)]), Err(TooMuch::Depth(NESTING_MAX + 1)));
        assert!(scan(&["[", &"{},".repeat(CONTAINERS_MAX - 1)]).is_ok());
        assert_eq!(scan(&["[", &"{},".repeat(CONTAINERS_MAX)]), Err(TooMuch::Containers));
        assert!(scan(&["[", &"0,".repeat(VALUES_MAX - 1)]).is_ok());
        assert_eq!(scan(&["[", &"0,".repeat(VALUES_MAX)]), Err(TooMuch::Values));
    }

    /// The bytes of what a parser really makes of documents that are all small parts are not more than what
    /// is counted.
    #[test]
    fn no_document_takes_more_than_is_counted() {
        use serde_json::{Map, Value};
        fn bytes(value: &Value) -> usize {
            // What the allocator gives at least, and an entry of the map: hash, name, value.
            let text = |text: &str| text.len().next_multiple_of(16) + 16;
            let entry = 8 + size_of::<String>() + size_of::<Value>();
            match value {
                Value::String(t) => text(t),
                Value::Array(items) => {
                    items.capacity() * size_of::<Value>() + items.iter().map(bytes).sum::<usize>()
                }
                Value::Object(map) if map.is_empty() => 0,
                // The map does not tell its capacity: at most twice its length, at least four entries.
                Value::Object(map) => {
                    let held: usize = Map::iter(map).map(|(name, value)| text(name) + bytes(value)).sum();
                    (2 * map.len()).max(4) * (entry + 16) + held
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            }
        }
        let message = r#"{"role":"user","content":"hi"},"#;
        let wide: String = (0..5000).map(|i| format!(r#""{i}":0,"#)).collect();
        for text in [
            format!("[{}0]", message.repeat(5000)),
            format!("[{}0]", "0,".repeat(5000)),
            format!("[{}0]", "[0],".repeat(5000)),
            format!("[{}0]", r#"{"a":0},"#.repeat(5000)),
            format!("[{}0]", r#"{"a":{"b":[]}},"#.repeat(5000)),
            format!("{{{wide}\"z\":0}}"),
        ] {
            let mut scan = Scan::default();
            scan.feed(text.as_bytes()).unwrap();
            let (counted, really) =
                (text.len() + scan.document_bytes(), bytes(&serde_json::from_str(&text).unwrap()));
            assert!(really <= counted, "{really} of {counted}: {:.60}", text);
        }
    }
}
