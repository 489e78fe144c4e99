//! A caller's grammar before the engine sees it: the engine recurses with its definitions and its brackets.

use crate::CompileError;

/// Most rules and terminals.
const DEFINITIONS_MAX: usize = 256;
/// Deepest nesting of brackets.
const BRACKETS_MAX: usize = 24;

/// Refuses a grammar that the engine could not bear, or that would reach past what is checked here.
pub fn check_lark(lark: &str) -> Result<(), CompileError> {
    let refused = |reason: String| Err(CompileError::Refused { reason });
    if lark.contains("%json") {
        let reason =
            "`%json` is not taken inside a grammar; send the schema as `response_format`, or write its rules";
        return refused(reason.to_owned());
    }
    if lark.contains("%llguidance") {
        let reason = "`%llguidance` is not taken inside a grammar: it changes the engine's own settings";
        return refused(reason.to_owned());
    }
    let (definitions, brackets, is_twice_not) = count(lark.as_bytes());
    if is_twice_not {
        return refused("`~~` in a grammar stands for nothing; leave it out".to_owned());
    }
    if definitions > DEFINITIONS_MAX {
        let reason =
            format!("the grammar has {definitions} rules and terminals, at most {DEFINITIONS_MAX} are taken");
        return refused(reason);
    }
    if brackets > BRACKETS_MAX {
        return refused(format!("the grammar's brackets are nested deeper than {BRACKETS_MAX} levels"));
    }
    Ok(())
}

/// At least as many definitions as there are (each has one colon), the deepest nesting of brackets, and
/// whether there is a `~` of a `~`, which the engine follows without end.
fn count(lark: &[u8]) -> (usize, usize, bool) {
    let (mut definitions, mut depth, mut deepest) = (0, 0_usize, 0);
    let (mut last, mut is_twice_not) = (b'\n', false);
    let mut at = 0;
    while let Some(byte) = lark.get(at) {
        is_twice_not |= *byte == b'~' && last == b'~';
        if !matches!(byte, b' ' | b'\t') {
            last = *byte;
        }
        let rest = &lark[at..];
        at += match byte {
            b'#' => line(rest),
            b'/' if rest.get(1) == Some(&b'/') => line(rest),
            b'"' | b'/' => quoted(rest),
            b'<' => special(rest),
            b':' => {
                definitions += 1;
                1
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
                1
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => 1,
        };
    }
    (definitions, deepest, is_twice_not)
}

/// The length of a comment.
fn line(text: &[u8]) -> usize {
    text.iter().position(|b| *b == b'\n').unwrap_or(text.len())
}

/// The length of a literal up to the sign that it began with. Where there is none, the engine refuses the
/// text anyway.
fn quoted(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if *byte == text[0] => return at + 1,
            _ => at += 1,
        }
    }
    1
}

/// The length of a special token.
fn special(text: &[u8]) -> usize {
    let end = text[1..].iter().position(|b| matches!(b, b'<' | b'>') || b.is_ascii_whitespace());
    end.filter(|end| text[end + 1] == b'>').map_or(1, |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_engine_is_refused_by_name() {
        for (lark, named) in [
            ("%llguidance {\"no_forcing\": true}\nstart: \"a\"", "%llguidance"),
            ("start: %json {\"type\": \"object\"}", "%json"),
            ("start: \"a\" ~ ~ \"b\"", "~~"),
        ] {
            let refused = check_lark(lark).expect_err(lark).to_string();
            assert!(refused.contains(named), "{refused}");
        }
        assert!(check_lark("start: \"a\" | \"b\"").is_ok());
    }

    #[test]
    fn definitions_and_brackets_are_counted_outside_of_literals() {
        for (lark, expected) in [
            ("start: a \"b: (\" // c: (\na: /d\\/: (/ # e: (\n", (2, 0, false)),
            ("start: <\"> a <\">\na: (\"x\" [\"y\"])?\n", (2, 2, false)),
            ("start: \"\\\"\" b: \"c\"", (2, 0, false)),
            ("start: A ~ ~ B \"~~\"", (1, 0, true)),
            ("start: A ~B \"~~\" /~/", (1, 0, false)),
            ("start: \"open a: b: (", (3, 1, false)),
        ] {
            assert_eq!(count(lark.as_bytes()), expected, "{lark}");
        }
    }
}
