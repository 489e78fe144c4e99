//! Rust source as tokens with their lines, without comments, and which of them are compiled for tests only.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// An identifier, a number, a lifetime, a whole literal, or one character of punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// From 1 on.
    pub line: usize,
    pub text: &'a str,
}

/// Code under `#[cfg(test)]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestCode {
    /// Which tokens.
    pub ranges: Vec<Range<usize>>,
    /// Modules in files of their own: the name, and the file where an attribute tells it.
    pub modules: Vec<(String, Option<String>)>,
}

impl TestCode {
    pub fn has(&self, at: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&at))
    }
}

/// A file of Rust, taken apart.
pub struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub tokens: Vec<Token<'a>>,
    pub tests: TestCode,
    /// Whether all of it is test code.
    pub is_test: bool,
}

impl Source<'_> {
    /// Which tokens are of no test.
    pub fn code(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|at| !self.is_test && !self.tests.has(*at))
    }
}

/// Takes files apart. Which of them are tests as a whole, the others say, too.
pub fn sources(texts: &[(PathBuf, String)]) -> Vec<Source<'_>> {
    let apart = texts.iter().map(|(path, text)| {
        let tokens = tokens(text);
        let tests = test_code(&tokens);
        Source { path, text, tokens, tests, is_test: false }
    });
    let mut sources: Vec<Source<'_>> = apart.collect();
    let mut marked = Vec::new();
    for source in &sources {
        marked.extend(source.tests.modules.iter().map(|module| module_file(source.path, module)));
    }
    for source in &mut sources {
        source.is_test = is_test_file(source.path, &marked);
    }
    sources
}

/// Splits a source that compiles; of another it makes something, without a panic.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut rest, mut line, mut found) = (source, 1, Vec::new());
    while let Some(first) = rest.chars().next() {
        let is_comment = rest.starts_with("//") || rest.starts_with("/*");
        let len = if is_comment { comment_len(rest) } else { token_len(rest, first) };
        let (text, behind) = rest.split_at(len);
        if !is_comment && !first.is_whitespace() {
            found.push(Token { line, text });
        }
        line += text.matches('\n').count();
        rest = behind;
    }
    found
}

fn comment_len(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let step = if rest[at..].starts_with("/*") {
            depth += 1;
            2
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

fn token_len(rest: &str, first: char) -> usize {
    let word = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    match first {
        '"' => string_len(rest),
        '\'' => {
            let mut chars = rest[1..].chars();
            let (inside, next) = (chars.next(), chars.next());
            match inside {
                // From the escape on, the quote that ends the character is the first one behind the escaped
                // letter.
                Some('\\') => 3 + rest.get(3..).and_then(|tail| tail.find('\'')).map_or(0, |end| end + 1),
                Some(letter) if next == Some('\'') => 2 + letter.len_utf8(),
                _ => 1 + word(&rest[1..]),
            }
            .min(rest.len())
        }
        c if c.is_alphanumeric() || c == '_' => {
            let len = word(rest);
            let (prefix, tail) = rest.split_at(len);
            let hashes = tail.len() - tail.trim_start_matches('#').len();
            let is_quoted = tail[hashes..].starts_with('"');
            match prefix {
                "r" | "br" | "cr" if is_quoted => {
                    let end = format!("\"{}", "#".repeat(hashes));
                    let body = len + hashes + 1;
                    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
                }
                "b" | "c" if is_quoted && hashes == 0 => len + string_len(tail),
                "b" if tail.starts_with('\'') => len + token_len(tail, '\''),
                _ => len,
            }
        }
        c => c.len_utf8(),
    }
}

/// From a quote to the one that ends the string.
fn string_len(rest: &str) -> usize {
    let mut is_escaped = true; // the quote that begins it ends nothing
    for (at, letter) in rest.char_indices() {
        match letter {
            '"' if !is_escaped => return at + 1,
            '\\' if !is_escaped => is_escaped = true,
            _ => is_escaped = false,
        }
    }
    rest.len()
}

/// Whether a file is tests as a whole: by its name or folder, or as one that a `#[cfg(test)] mod name;`
/// names.
fn is_test_file(path: &Path, marked: &[PathBuf]) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name == "tests.rs")
        // The module's own file and whatever lies in its folder.
        || marked.iter().any(|file| path == file || path.starts_with(file.with_extension("")))
}

/// Where the module that `from` declares is written.
fn module_file(from: &Path, (name, path): &(String, Option<String>)) -> PathBuf {
    let folder = from.parent().unwrap_or(Path::new(""));
    match path {
        Some(path) => folder.join(path),
        None if ["lib.rs", "main.rs"].iter().any(|home| from.ends_with(home)) => {
            folder.join(format!("{name}.rs"))
        }
        None => from.with_extension("").join(format!("{name}.rs")),
    }
}

/// Finds what `#[cfg(test)]` and `#[cfg(all(test, ..))]` stand on.
pub fn test_code(tokens: &[Token<'_>]) -> TestCode {
    let mut found = TestCode::default();
    let mut at = 0;
    while at < tokens.len() {
        let is = |words: &[&str]| {
            tokens.len() >= at + words.len()
                && tokens[at..].iter().zip(words).all(|(t, word)| t.text == *word)
        };
        if is(&["#", "!", "[", "cfg", "(", "test", ")"]) {
            found.ranges.push(at..tokens.len());
            break;
        }
        if !is(&["#", "[", "cfg", "(", "test", ")"]) && !is(&["#", "[", "cfg", "(", "all", "(", "test"]) {
            at += 1;
            continue;
        }
        let (start, mut path) = (at, None);
        while tokens.get(at).is_some_and(|token| token.text == "#") {
            let end = closing(tokens, at + 1);
            if let [_, _, name, _, value, ..] = &tokens[at..end]
                && name.text == "path"
            {
                path = Some(value.text.trim_matches('"').to_owned());
            }
            at = end;
        }
        let end = item_end(tokens, at);
        if let [.., kind, name, last] = &tokens[at..end]
            && (kind.text, last.text) == ("mod", ";")
        {
            found.modules.push((name.text.to_owned(), path));
        }
        found.ranges.push(start..end);
        at = end;
    }
    found
}

/// Behind the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Behind the item, statement, field or arm that begins at `start`.
fn item_end(tokens: &[Token<'_>], start: usize) -> usize {
    const ITEMS: [&str; 10] =
        ["fn", "struct", "enum", "impl", "mod", "use", "trait", "const", "static", "type"];
    let head = tokens[start..].iter().take(6);
    let is_item = head.take_while(|token| token.text != "{").any(|token| ITEMS.contains(&token.text));
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            ")" | "]" | "}" => return at, // what it stands in ends
            "{" => {
                at = closing(tokens, at);
                match tokens.get(at).map(|token| token.text) {
                    Some(";" | "," | "." | "?") => {}
                    _ => return at,
                }
            }
            "(" | "[" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_go_and_literals_stay_whole() {
        assert_eq!(texts("a // b\n/* c /* d */ e */ f"), ["a", "f"]);
        assert_eq!(texts(r##"x("a \" // b", r#"c " d"#, b"e", b'"', '"', '\'', '\u{1f}')"##).len(), 16);
        assert_eq!(
            texts("&'static str, 'a', 'ä', '\\\\'"),
            ["&", "'static", "str", ",", "'a'", ",", "'ä'", ",", "'\\\\'"]
        );
        assert_eq!(texts("r#type 1.5e-3"), ["r", "#", "type", "1", ".", "5e", "-", "3"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let found = tokens("a\n\"b\nc\" /*\n*/ d");
        assert_eq!(found.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn what_stands_under_a_test_attribute_is_found_to_its_end() {
        let outside = |source: &str| {
            let (tokens, mut left) = (tokens(source), Vec::new());
            let tests = test_code(&tokens);
            left.extend(tokens.iter().enumerate().filter(|(at, _)| !tests.has(*at)).map(|(_, t)| t.text));
            (left.join(" "), tests.modules)
        };
        let none = Vec::new;
        assert_eq!(
            outside("#[cfg(test)] mod t { fn f() {} } fn g() {}"),
            ("fn g ( ) { }".to_owned(), none())
        );
        assert_eq!(outside("#[cfg(test)] use a::{b, c}; x"), ("x".to_owned(), none()));
        assert_eq!(outside("#[cfg(test)] fn f<A, B>(a: [u8; 3]) -> A { b } x"), ("x".to_owned(), none()));
        assert_eq!(outside("S { #[cfg(test)] a: B { c }, d }"), ("S { d }".to_owned(), none()));
        assert_eq!(outside("S { d, #[cfg(test)] a: u8 } x"), ("S { d , } x".to_owned(), none()));
        assert_eq!(outside("#[cfg(all(test, miri))] const A: [u8; 1] = [0]; x"), ("x".to_owned(), none()));
        assert_eq!(
            outside("#[cfg(any(test, fuzzing))] fn f() {}").0.len(),
            "# [ cfg ( any ( test , fuzzing ) ) ] fn f ( ) { }".len()
        );
        let source = "#[cfg(test)] #[path = \"t.rs\"] mod tests; #[cfg(test)] pub mod help; x";
        let modules = vec![("tests".to_owned(), Some("t.rs".to_owned())), ("help".to_owned(), None)];
        assert_eq!(outside(source), ("x".to_owned(), modules));
        assert_eq!(outside("//! About.\n#![cfg(test)]\nfn f() {}"), (String::new(), none()));
    }
}
