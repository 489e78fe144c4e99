//! Parts of the documentation that commands write: each between two marks of its page.

use anyhow::Context;

use crate::run;

/// Puts `new`, made from what stands there, between the marks of the page at `path`. Whether that changed it;
/// with `check` nothing is written.
pub fn rewrite(
    path: &str,
    marks: (&str, &str),
    check: bool,
    new: impl FnOnce(&str) -> String,
) -> anyhow::Result<bool> {
    let page = run::read(path)?;
    let changed = replaced(&page, marks, new)
        .with_context(|| format!("{path} lacks `{}` or `{}`", marks.0, marks.1))?;
    if changed == page {
        return Ok(false);
    }
    if !check {
        std::fs::write(path, changed).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(true)
}

fn replaced(page: &str, (begin, end): (&str, &str), new: impl FnOnce(&str) -> String) -> Option<String> {
    let (before, rest) = page.split_once(begin)?;
    let (old, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{}\n{end}{after}", new(old)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_marks_is_replaced_and_nothing_else() {
        let marks = ("<!-- a -->", "<!-- b -->");
        let page = "words\n<!-- a -->\nold\n<!-- b -->\nmore\n";
        let once = replaced(page, marks, |old| format!("{} and new\n", old.trim())).unwrap();
        assert_eq!(once, "words\n<!-- a -->\n\nold and new\n\n<!-- b -->\nmore\n");
        assert_eq!(replaced(&once, marks, |_| "old and new\n".to_owned()), Some(once));
        assert_eq!(replaced("no marks", marks, |_| String::new()), None);
    }
}
