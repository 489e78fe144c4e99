//! Names that are our own where the field has one: the left column of the house's table of words, and what
//! went with it.

use std::collections::BTreeMap;
use std::path::Path;

use super::is_shipped;
use super::tokens::Source;

/// Of types, each with the field's name for it.
const TYPES: [(&str, &str); 52] = [
    ("Shop", "DeviceInner"),
    ("Desk", "ReadbackQueue"),
    ("Landing", "PendingReadback"),
    ("Untold", "UnreportedFaults"),
    ("Flying", "in flight"),
    ("Ahead", "what is pending or prepared"),
    ("Settler", "Repacker"),
    ("Reign", "epoch"),
    ("Stance", "role"),
    ("Said", "last heartbeat, or a noun that says what of"),
    ("Beat", "heartbeat"),
    ("Maker", "vendor"),
    ("Silence", "ProbeFailure"),
    ("Turnover", "QueueRate"),
    ("Chooser", "TokenSampler"),
    ("Leave", "a noun that says what is allowed"),
    ("Run", "a noun that says what runs"),
    ("Held", "a noun that says what is held"),
    ("Kept", "a noun that says what is kept"),
    ("Told", "a noun that says what was told"),
    ("Place", "a noun that says of what it is the address or the position"),
    ("Found", "a noun that says what was found"),
    ("Seen", "a noun that says what was seen"),
    ("Asked", "a noun that says what is asked"),
    ("Wanted", "a noun that says what is chosen"),
    ("Known", "a noun that says what is known"),
    ("Turn", "a lock or a guard, by what it locks"),
    ("Parts", "a noun that says what of"),
    ("Work", "a noun that says what works, or what it costs"),
    ("Measured", "a noun that says what was measured"),
    ("Shared", "the type that shares it, with `Inner`"),
    ("Seat", "a slot, or what is chosen"),
    ("Piece", "a block, a chunk or a part, by what of"),
    ("Stored", "a noun that says what is stored"),
    ("Trouble", "an error, or a failure by what failed"),
    ("Ended", "an end, by what ended"),
    ("Reading", "what is read, or what reads"),
    ("Of", "a noun that says what is told apart"),
    ("Via", "Transport"),
    ("LoadWords", "LoadInfo"),
    ("CardWords", "CardInfo"),
    ("Settling", "RepackProgress"),
    ("KeptOff", "quarantined"),
    ("LostSeat", "LostRun"),
    ("Stand", "state"),
    ("JoinPlace", "JoinSlot"),
    ("DraftLeave", "DraftLimits"),
    ("Wish", "command"),
    ("Brought", "a result"),
    ("Heard", "an event"),
    ("Looker", "a watcher"),
    ("Lessons", "corrections"),
];
/// Of files.
const FILES: [(&str, &str); 5] = [
    ("words.rs", "messages.rs or types.rs"),
    ("piece.rs", "split.rs"),
    ("wide.rs", "bf16.rs"),
    ("room.rs", "memory_check.rs, or what it makes room in"),
    ("board.rs", "what it holds"),
];
/// Where a command has its name from.
const COMMANDS: &str = "crates/cli/src/args.rs";

/// A line for each invented name.
pub fn invented(sources: &[Source<'_>]) -> Vec<String> {
    let told = |(name, instead)| format!("{name} is a name of our own: {instead}");
    found(sources).into_iter().map(told).collect()
}

/// `CRATE: Name` of each, with what to take instead.
fn found(sources: &[Source<'_>]) -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates") && is_shipped(source)) {
        let Source { path, tokens, .. } = source;
        let home = path.iter().nth(1).unwrap_or_default().display().to_string();
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        found.extend(instead_of(&FILES, file).map(|instead| (format!("{home}: {file}"), instead)));
        if *path == Path::new(COMMANDS) {
            continue;
        }
        for at in source.code().skip_while(|at| *at == 0) {
            if matches!(tokens[at - 1].text, "struct" | "enum" | "trait" | "type")
                && let Some(instead) = instead_of(&TYPES, tokens[at].text)
            {
                found.insert(format!("{home}: {}", tokens[at].text), instead);
            }
        }
    }
    found
}

fn instead_of(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(invented, _)| *invented == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::tokens;
    use super::*;

    #[test]
    fn types_and_files_of_the_table_are_found_and_commands_and_tests_are_not() {
        let sources = [
            (
                "crates/a/src/lib.rs",
                "mod words; struct Shop; enum Runner {} #[cfg(test)] mod t { struct Desk; }",
            ),
            ("crates/a/src/words.rs", "fn f(x: Held) {}"),
            ("crates/a/tests/t.rs", "struct Kept;"),
            (COMMANDS, "struct Run;"),
            ("crates/cli/src/main.rs", "struct Run;"),
        ];
        let texts = sources.map(|(path, text)| (PathBuf::from(path), text.to_owned()));
        let names: Vec<String> = found(&tokens::sources(&texts)).into_keys().collect();
        assert_eq!(names, ["a: Shop", "a: words.rs", "cli: Run"]);
    }
}
