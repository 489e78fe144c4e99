//! How files are laid out: one style of modules, comments that a window beside another shows whole, docs that
//! say something where they are shown alone and hold no code that only rustdoc would run.

use std::path::Path;

use super::tokens::Source;

/// rustfmt keeps code within it and leaves comments alone.
const COLUMNS_MAX: usize = 110;

/// Modules that are `x/mod.rs` instead of `x.rs` beside its folder, comment lines that are too long, docs of
/// one word, and blocks of Rust in docs: `cargo xtask test` does not run them.
pub fn untidy(sources: &[Source<'_>]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Source { path: file, text, .. } in sources {
        if is_old_style(file) {
            complaints.push(format!("{}: it is the `.rs` file beside its folder here", file.display()));
        }
        let long = text.lines().enumerate().filter(|(_, line)| is_long_comment(line));
        complaints.extend(
            long.map(|(at, _)| format!("{}:{}: a comment past column {COLUMNS_MAX}", file.display(), at + 1)),
        );
        complaints.extend(rust_blocks(text).into_iter().map(|line| {
            format!("{}:{line}: no test runs Rust in docs: make a test of it, or say `text`", file.display())
        }));
        if file.starts_with("crates") {
            let words = one_word_docs(text).into_iter();
            complaints.extend(words.map(|line| {
                format!("{}:{line}: a doc of one word: name what it is about, and its unit", file.display())
            }));
        }
    }
    complaints
}

/// Helpers of test programs keep it: a file beside them would be a program of its own.
fn is_old_style(file: &Path) -> bool {
    file.ends_with("mod.rs") && file.components().any(|part| part.as_os_str() == "src")
}

/// Rows of tables, code and addresses cannot be broken.
fn is_long_comment(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let text = comment.trim_start_matches(['/', '!']);
    let is_whole = text.starts_with(" |") || text.starts_with("    ") || text.contains("://");
    line.chars().count() > COLUMNS_MAX && !is_whole
}

/// Lines, from 1, of docs such as `Why.`: rustdoc and `openapi.json` show them without the line above, which
/// would explain them. Names, shapes and letters of formulas stand for themselves.
fn one_word_docs(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_doc = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("///"));
    let is_word = |at: usize| {
        let word = lines[at].trim_start_matches('/').trim().trim_end_matches('.');
        word.chars().count() > 1 && word.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '-'))
    };
    let is_alone = |at: usize| !is_doc(at + 1) && (at == 0 || !is_doc(at - 1));
    (0..lines.len()).filter(|at| is_doc(*at) && is_alone(*at) && is_word(*at)).map(|at| at + 1).collect()
}

/// What a block of Rust may say first.
const RUST: [&str; 5] = ["rust", "no_run", "ignore", "should_panic", "compile_fail"];

/// Lines, from 1, of docs that open a block which rustdoc takes for Rust: it names no other language.
fn rust_blocks(text: &str) -> Vec<usize> {
    let docs = text.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
    });
    let fences = docs.enumerate().filter_map(|(at, doc)| Some((at + 1, doc?.strip_prefix("```")?.trim())));
    let is_rust = |(_, words): &(usize, &str)| {
        let first = words.split([',', ' ']).next().unwrap_or_default();
        first.is_empty() || RUST.contains(&first)
    };
    fences.step_by(2).filter(is_rust).map(|(line, _)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_one_style_and_a_comment_an_end() {
        assert!(is_old_style(Path::new("crates/a/src/b/mod.rs")));
        assert!(!is_old_style(Path::new("crates/a/tests/common/mod.rs")));
        let words = "word ".repeat(30);
        assert!(is_long_comment(&format!("    /// {words}")));
        assert!(is_long_comment(&format!("//! {words}")));
        assert!(!is_long_comment(&format!("//! | {words} |")));
        assert!(!is_long_comment(&format!("//! see https://{}", "x".repeat(120))));
        assert!(!is_long_comment("// short"));
        assert!(!is_long_comment(&format!("let text = \"{words}\";")));
    }

    #[test]
    fn code_in_docs_is_not_rust() {
        assert_eq!(rust_blocks("//! ```\n//! f();\n//! ```\n"), [1]);
        assert_eq!(
            rust_blocks("/// ```text\n/// a\n/// ```\n    /// ```rust\n    /// b\n    /// ```\n"),
            [4]
        );
        assert_eq!(rust_blocks("/// ```no_run\n/// ```\n/// ```rust,ignore\n/// ```\n"), [1, 3]);
        assert!(rust_blocks("//! ```toml\n//! ```\nlet text = \"```\";\n").is_empty());
    }

    #[test]
    fn a_doc_says_more_than_one_word() {
        let of = |doc: &str| one_word_docs(&format!("struct A {{\n{doc}    a: u8,\n}}\n"));
        assert_eq!(of("    /// Why.\n"), [2]);
        assert_eq!(of("    /// Ollama's\n"), [2]);
        assert_eq!(one_word_docs("/// Why.\nfn f() {}\n"), [1]);
        for fine in [
            "    /// Why it failed.\n",
            "    /// Why\n    /// it failed.\n",
            "    /// It failed for this\n    /// reason.\n",
            "    /// `[C]`\n",
            "    /// T\n",
            "    // Why.\n",
        ] {
            assert!(of(fine).is_empty(), "{fine}");
        }
    }
}
