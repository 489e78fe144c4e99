//! Arrays and objects as Python prints them, read as they come into JSON. What is JSON already stays as it
//! is: an answer that is held to a schema has that.

/// How far a value was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PythonReader {
    /// The sign that closes the string that is read.
    quote: Option<char>,
}

impl PythonReader {
    /// Takes what is certain from `held` up to `stop`, where it stands in no string, and writes it as JSON.
    /// Whether it came there.
    pub(super) fn read(&mut self, held: &mut String, stop: char, json: &mut String) -> bool {
        let (mut at, mut is_over) = (0, false);
        while let Some(first) = held[at..].chars().next() {
            if self.quote.is_none() && first == stop {
                is_over = true;
                break;
            }
            let rest = &held[at..];
            let Some(len) = (match self.quote {
                Some(quote) => self.in_string(rest, first, quote, json),
                None => self.outside(rest, first, json),
            }) else {
                break;
            };
            at += len;
        }
        held.drain(..at);
        is_over
    }

    /// A part of a string; how long it is, if all of it is there.
    fn in_string(&mut self, rest: &str, first: char, quote: char, json: &mut String) -> Option<usize> {
        if first == '\\' {
            let (len, character) = escape(rest)?;
            match character {
                Some(character) => push_text(character.encode_utf8(&mut [0; 4]), json),
                // JSON has the same, or nothing of it.
                None => json.push_str(&rest[..len]),
            }
            return Some(len);
        }
        if first == quote {
            self.quote = None;
            json.push('"');
        } else {
            push_text(first.encode_utf8(&mut [0; 4]), json);
        }
        Some(first.len_utf8())
    }

    /// A word, or a sign, that stands in no string.
    fn outside(&mut self, rest: &str, first: char, json: &mut String) -> Option<usize> {
        if first == '\'' || first == '"' {
            self.quote = Some(first);
            json.push('"');
            return Some(1);
        }
        if !first.is_ascii_alphabetic() {
            json.push(first);
            return Some(first.len_utf8());
        }
        // The first sign behind it says that it is whole.
        let len = rest.find(|c: char| !c.is_ascii_alphabetic())?;
        json.push_str(match &rest[..len] {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        });
        Some(len)
    }
}

/// How long the escape is that a text begins with, and which character it is where JSON writes it otherwise;
/// `None` while not all of it is there.
fn escape(text: &str) -> Option<(usize, Option<char>)> {
    let kind = text[1..].chars().next()?;
    let digits = match kind {
        'x' => 2,
        'U' => 8,
        '\'' => return Some((2, Some('\''))),
        // What follows is read with the second half of a pair, by who reads the JSON.
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u' => return Some((2, None)),
        // No escape at all.
        _ => return Some((1, Some('\\'))),
    };
    if text.len() < 2 + digits && text[2..].bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let code = text.get(2..2 + digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
    Some(match code.and_then(char::from_u32) {
        Some(character) => (2 + digits, Some(character)),
        None => (1, Some('\\')),
    })
}

/// A text as it stands between the quotes of a string of JSON.
pub(super) fn push_text(text: &str, json: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    json.push_str(&quoted[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, sizes: usize) -> String {
        let (mut reader, mut held, mut json) = (PythonReader::default(), String::new(), String::new());
        for piece in text.chars().collect::<Vec<_>>().chunks(sizes) {
            held.extend(piece);
            if reader.read(&mut held, '<', &mut json) {
                break;
            }
        }
        assert!(held.starts_with('<'), "{held}");
        json
    }

    #[test]
    fn what_python_prints_is_read_as_json() {
        for (python, json) in [
            ("[1, 'x', True, None, -2.5e-07]<", r#"[1, "x", true, null, -2.5e-07]"#),
            (r#"{'a': 'b "c" <d>', "it's": False}<"#, r#"{"a": "b \"c\" <d>", "it's": false}"#),
            (r"['it\'s \x07 \U0001f600 \d \\ \n \xzz \x+5']<", r#"["it's \u0007 😀 \\d \\ \n \\xzz \\x+5"]"#),
            (r#"{"a": ["\u00e9\"<", true, null]}<"#, r#"{"a": ["\u00e9\"<", true, null]}"#),
        ] {
            for sizes in [1, 2, 100] {
                assert_eq!(read(python, sizes), json, "{python}");
            }
        }
    }
}
