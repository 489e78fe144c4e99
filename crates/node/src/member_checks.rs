//! What another member's doctor found, made fit to be shown.

use exo_api::{CHECKS_MAX, CheckView};
use exo_types::{clean_name, printable};

const NAME_CHARS_MAX: usize = 60;
/// Of a text of another node.
pub const TEXT_CHARS_MAX: usize = 1000;

/// Of another node's words what may be shown.
pub fn read(bytes: &[u8]) -> Result<Vec<CheckView>, serde_json::Error> {
    let mut checks: Vec<CheckView> = serde_json::from_slice(bytes)?;
    checks.truncate(CHECKS_MAX);
    for CheckView { check, found, next, .. } in &mut checks {
        *check = clean_name(check, NAME_CHARS_MAX);
        *found = printable(found, TEXT_CHARS_MAX);
        *next = printable(next, TEXT_CHARS_MAX);
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_of_its_machine_is_made_fit_to_be_shown() {
        let hostile = "\u{1b}[2J\nx".repeat(2000);
        let check = CheckView::warning(&hostile, hostile.clone()).next(hostile);
        let bytes = serde_json::to_vec(&vec![check; CHECKS_MAX + 1]).unwrap();
        let checks = read(&bytes).unwrap();
        assert_eq!(checks.len(), CHECKS_MAX);
        let CheckView { check, found, next, .. } = &checks[0];
        for text in [check, found, next] {
            // A text that is cut says by how much.
            let is_bounded = text.chars().count() < TEXT_CHARS_MAX + 40;
            assert!(is_bounded && !text.contains(['\u{1b}', '\n']), "{text}");
        }
        assert!(read(br#"[{"check": "x", "verdict": "cured", "found": "", "next": ""}]"#).is_err());
    }
}
