//! Platform code is split by file: a `cfg` about the system or the processor stands on a `mod` or a `use`,
//! never inside a function. In tests it may stand on a whole item as well.

use std::path::Path;

use super::tokens::Source;

/// What a platform is told by; `feature`, `test` and `miri` tell something else.
const KEYS: [&str; 9] = [
    "unix",
    "windows",
    "target_os",
    "target_arch",
    "target_family",
    "target_vendor",
    "target_env",
    "target_pointer_width",
    "target_endian",
];

/// A line for each place where platform code stands among other code.
pub fn scattered(sources: &[Source<'_>]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Source { path: file, text, .. } in sources {
        if !is_in(file, "src") && !is_in(file, "tests") {
            continue;
        }
        let is_test = is_in(file, "tests") || file.file_stem().is_some_and(|stem| stem == "tests");
        let found = find(text, is_test).into_iter();
        complaints.extend(found.map(|(line, what)| {
            format!("{}:{line}: {what}; give each system a file of its own", file.display())
        }));
    }
    complaints
}

/// Whether one of the folders above the file has this name.
fn is_in(file: &Path, folder: &str) -> bool {
    file.components().any(|part| part.as_os_str() == folder)
}

/// Lines, from 1 on, and what is wrong there. For formatted code: what is inside something is indented
/// further.
fn find(text: &str, is_test: bool) -> Vec<(usize, &'static str)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions: Vec<usize> = Vec::new(); // how far their heads are indented
    let (mut in_tests, mut found) = (is_test, Vec::new());
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        if body.is_empty() || body.starts_with("//") {
            continue;
        }
        let indent = line.len() - body.len();
        // `)`, `where` and `{` go on with a head, whatever else stands as far left comes after its function.
        let goes_on = |head: usize| {
            indent == head
                && ([")", "where", "{"].iter().any(|start| body.starts_with(start)) && !body.ends_with(';'))
        };
        while functions.last().is_some_and(|head| indent <= *head && !goes_on(*head)) {
            functions.pop();
        }
        in_tests |= body.starts_with("mod tests {");
        if body.contains("@_select!".replace('@', "cfg").as_str()) {
            found.push((at + 1, "systems side by side"));
        }
        if let Some((is_macro, end)) = platform_cfg(&lines, at) {
            let mut items = lines[end + 1..].iter().map(|line| line.trim_start());
            let item = items.find(|line| !line.starts_with("#[") && !line.starts_with("//"));
            let is_whole_file = body.starts_with("#![");
            if is_macro || !functions.is_empty() {
                found.push((at + 1, "a platform `cfg` inside a function"));
            } else if !in_tests && !is_whole_file && !item.is_some_and(names_a_file) {
                found.push((at + 1, "a platform `cfg` on something else than `mod` or `use`"));
            }
        }
        let head = without_visibility(body).split('(').next().unwrap_or_default();
        let is_whole = body.ends_with(';') || body.ends_with('}');
        if head.split_whitespace().any(|word| word == "fn") && !is_whole {
            functions.push(indent);
        }
    }
    found
}

/// Whether the line has a `cfg` of a platform, written as a macro or as an attribute, and on which line that
/// ends.
fn platform_cfg(lines: &[&str], at: usize) -> Option<(bool, usize)> {
    ["cfg!", "#[cfg", "#![cfg", "cfg_attr"].into_iter().find_map(|name| {
        let start = format!("{name}(");
        lines[at].match_indices(&start).find_map(|(column, _)| {
            let (condition, end) = condition(lines, (at, column + start.len()), name == "cfg_attr");
            tells_a_platform(&condition).then_some((name == "cfg!", end))
        })
    })
}

/// What stands between these brackets, up to the first comma if only that is the condition, and the line
/// where it ends.
fn condition(lines: &[&str], (at, column): (usize, usize), to_comma: bool) -> (String, usize) {
    let (mut depth, mut text) = (1, String::new());
    for (number, line) in lines.iter().enumerate().skip(at) {
        let rest = if number == at { &line[column..] } else { line };
        for letter in rest.chars() {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            if depth == 0 || (to_comma && depth == 1 && letter == ',') {
                return (text, number);
            }
            text.push(letter);
        }
    }
    (text, at)
}

fn tells_a_platform(condition: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut words = condition.split(|letter| !is_part(letter)).filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        if word == "feature" {
            words.next(); // its name
        } else if KEYS.contains(&word) {
            return true;
        }
    }
    false
}

/// An item without `pub` and how far that reaches.
fn without_visibility(item: &str) -> &str {
    let item = item.strip_prefix("pub").map_or(item, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(") ").map_or("", |(_, item)| item),
        None => rest,
    });
    item.trim_start()
}

fn names_a_file(item: &str) -> bool {
    let item = without_visibility(item);
    // In a module that stands right here platform code is as much among other code as before, but for tests.
    item.starts_with("use ") || (item.starts_with("mod ") && (item.ends_with(';') || item == "mod tests {"))
}

#[cfg(test)]
mod tests {
    use super::find;

    /// `@` stands for `cfg`, so that this file is not complained of.
    fn check(text: &str) -> Vec<usize> {
        find(&text.replace('@', "cfg"), false).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_module_in_a_file_of_its_own_and_its_use_are_as_they_should_be() {
        let text = "\
#![@(unix)]
#[@(target_os = \"linux\")]
mod linux;
#[@(not(target_os = \"linux\"))]
#[path = \"other.rs\"]
pub(crate) mod plain;

#[@(not(any(target_os = \"linux\", target_os = \"android\",
    windows)))]
pub use plain::x as y;

fn f();
";
        assert!(check(text).is_empty(), "{:?}", check(text));
    }

    #[test]
    fn inside_a_function_every_form_is_found() {
        let text = "\
fn signature(
    a: u8,
) -> u8
where
    u8: Copy,
{
    #[@(unix)]
    return a;
    let b = if @!(windows) { 1 } else { 2 };
    match b {
        #[@(target_arch = \"x86_64\")]
        1 => 2,
    }
}

impl A {
    pub fn one() {}

    fn two(self) -> bool {
        #[@_attr(not(target_os = \"linux\"), allow(unused))]
        let c = @!(all(feature = \"unix\", miri));
        c
    }
}

const IS_WINDOWS: bool = @!(windows);
fn three() -> bool { @!(unix) }

pub(crate) fn four() {
    #[@(unix)]
    use std::os::unix::fs;
    if @!(debug_assertions) && @!(windows) {}
    @_select! {
        unix => {}
        _ => {}
    }
}
";
        assert_eq!(check(text), [7, 9, 11, 20, 26, 27, 30, 32, 33]);
    }

    #[test]
    fn items_side_by_side_are_found_but_for_tests() {
        let text = "\
#[@(unix)]
fn f() {}
#[@(not(unix))]
fn f() {}
struct S {
    #[@(windows)]
    handle: u64,
}
#[@(unix)]
mod inline {
}
#[@(feature = \"hip\")]
fn g() {}
#[@_attr(test, derive(Unix))]
struct T;

#[@(all(test, unix))]
mod tests {
    #[test]
    #[@(unix)]
    fn h() {
        #[@(target_os = \"linux\")]
        i();
    }
}
";
        assert_eq!(check(text), [1, 3, 6, 9, 22]);
    }
}
