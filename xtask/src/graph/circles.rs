//! Modules of a crate that import each other in circles: whoever reads one has to read them all. There is
//! none.
//!
//! A module here is what the crate's root names, with all that lies in its folder: a module and what lies in
//! it may know each other. A name that the root hands on (`pub use module::Name`, `pub use module::*`) is its
//! module's. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::run;
use crate::tidy::tokens::{TestCode, Token, test_code, tokens};

/// Of tests only: what they import is nobody's house.
const TESTS_ONLY: [&str; 3] = ["sim", "golden", "mock-hub"];
/// What a name that a module hands out stands behind.
const ITEMS: [&str; 7] = ["struct", "enum", "type", "trait", "fn", "const", "static"];
/// All names of a module.
const ALL: &str = "*";

type Modules = BTreeSet<String>;

/// Fails on a circle, and says which modules are in it.
pub fn run() -> anyhow::Result<()> {
    let circles = all()?;
    let lines: Vec<String> =
        circles.iter().map(|(name, circle)| format!("{name}: {}", joined(circle))).collect();
    if !lines.is_empty() {
        bail!("modules that import each other in a circle:\n{}", lines.join("\n"));
    }
    Ok(())
}

fn joined(modules: &Modules) -> String {
    modules.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn all() -> anyhow::Result<Vec<(String, Modules)>> {
    let listed =
        run::output("git", &["ls-files", "--cached", "--others", "--exclude-standard", "crates/*.rs"])?;
    let mut crates: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in listed.lines().map(PathBuf::from).filter(|file| file.is_file()) {
        let mut parts = file.iter().filter_map(|part| part.to_str());
        if let (Some("crates"), Some(name), Some("src")) = (parts.next(), parts.next(), parts.next())
            && !TESTS_ONLY.contains(&name)
        {
            crates.entry(name.to_owned()).or_default().push(file);
        }
    }
    let mut all = Vec::new();
    for (name, files) in crates {
        let src = Path::new("crates").join(&name).join("src");
        let mut sources = Vec::new();
        for file in files {
            sources.push((file.strip_prefix(&src).unwrap_or(&file).to_owned(), run::read(&file)?));
        }
        all.extend(circles(&imports(&sources)).into_iter().map(|circle| (name.clone(), circle)));
    }
    Ok(all)
}

/// The module that a file below `src` is of; `None` for the root, and for files of tests.
fn module_of(file: &Path) -> Option<String> {
    let is_test = file.iter().any(|part| part == "tests" || part == "tests.rs");
    let first = file.iter().next()?.to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!is_test && !matches!(name, "lib" | "main" | "bin")).then(|| name.to_owned())
}

/// Which module imports from which.
fn imports(sources: &[(PathBuf, String)]) -> BTreeMap<String, Modules> {
    let modules: Modules = sources.iter().filter_map(|(file, _)| module_of(file)).collect();
    let mut handed_on = BTreeMap::new();
    for (_, text) in sources.iter().filter(|(file, _)| is_root(file)) {
        for (name, module) in names_of_root(&tokens(text), &modules) {
            if name == ALL {
                let file = PathBuf::from(format!("{module}.rs"));
                let texts = sources.iter().filter(|(other, _)| *other == file);
                let names = texts.flat_map(|(_, text)| public_names(&tokens(text)));
                handed_on.extend(names.map(|name| (name, module.clone())));
            } else {
                handed_on.insert(name, module);
            }
        }
    }
    let mut imports: BTreeMap<String, Modules> = BTreeMap::new();
    for (file, text) in sources {
        let Some(own) = module_of(file) else { continue };
        let tokens = tokens(text);
        let tests = test_code(&tokens);
        let is_flat = file.iter().count() == 1;
        for head in heads(&tokens, &tests, is_flat) {
            let module =
                if modules.contains(head) { Some(head) } else { handed_on.get(head).map(String::as_str) };
            if let Some(module) = module.filter(|module| *module != own) {
                imports.entry(own.clone()).or_default().insert(module.to_owned());
            }
        }
    }
    imports
}

fn is_root(file: &Path) -> bool {
    file == Path::new("lib.rs") || file == Path::new("main.rs")
}

/// Names that a module hands out, as far as its own file declares them.
fn public_names(tokens: &[Token<'_>]) -> Vec<String> {
    let is_public = |words: &&[Token<'_>]| words[0].text == "pub" && ITEMS.contains(&words[1].text);
    tokens.windows(3).filter(is_public).map(|words| words[2].text.to_owned()).collect()
}

/// `use module::…;` in a root: each name in it, or [`ALL`], and the module.
fn names_of_root(tokens: &[Token<'_>], modules: &Modules) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "use") {
        let path: Vec<&str> =
            tokens[at + 1..].iter().map(|token| token.text).take_while(|text| *text != ";").collect();
        let is_word = |text: &&str| (is_name(text) || *text == ALL) && !matches!(*text, "crate" | "self");
        let mut words = path.into_iter().filter(is_word);
        if let Some(module) = words.next().filter(|first| modules.contains(*first)) {
            names.extend(words.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    names
}

/// What follows `crate::`, and, in a file that lies beside the root, `super::`: one name, or the first of
/// each in braces.
fn heads<'a>(tokens: &[Token<'a>], tests: &TestCode, is_flat: bool) -> Vec<&'a str> {
    let mut heads = Vec::new();
    for at in 0..tokens.len() {
        let is_start = tokens[at].text == "crate" || (is_flat && tokens[at].text == "super");
        let is_path =
            tokens.get(at + 1..at + 3).is_some_and(|next| next.iter().all(|token| token.text == ":"));
        // `pub(in crate::…)` imports nothing.
        let is_visibility = at > 0 && tokens[at - 1].text == "in";
        if !is_start || !is_path || is_visibility || tests.has(at) {
            continue;
        }
        match tokens.get(at + 3) {
            Some(token) if token.text == "{" => heads.extend(first_of_each(&tokens[at + 4..])),
            Some(token) => heads.push(token.text),
            None => {}
        }
    }
    heads
}

/// Behind an opening brace: the first name behind it and behind each comma of that depth.
fn first_of_each<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let (mut depth, mut is_due, mut found) = (1, true, Vec::new());
    for token in tokens {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => is_due = true,
            name if is_due && is_name(name) => {
                found.push(name);
                is_due = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn is_name(text: &str) -> bool {
    text.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
}

/// Groups of modules of which each leads to every other.
fn circles(imports: &BTreeMap<String, Modules>) -> Vec<Modules> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reached_from(module, imports))).collect();
    let leads = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let mut circles: Vec<Modules> = Vec::new();
    for module in reached.keys().filter(|module| leads(module, module)) {
        if !circles.iter().any(|circle| circle.contains(*module)) {
            let both = reached.keys().filter(|other| leads(module, other) && leads(other, module));
            circles.push(both.map(|name| (*name).to_owned()).collect());
        }
    }
    circles
}

fn reached_from<'a>(module: &str, imports: &'a BTreeMap<String, Modules>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = imports.get(module).into_iter().flatten().map(String::as_str).collect();
    while let Some(name) = next.pop() {
        if reached.insert(name) {
            next.extend(imports.get(name).into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            sources.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect();
        circles(&imports(&sources)).iter().map(joined).collect()
    }

    #[test]
    fn modules_that_lead_back_to_themselves_are_a_circle_however_they_name_each_other() {
        let root = ("lib.rs", "mod a; mod b; mod c; pub use c::{Name, Other};");
        let a = ("a.rs", "use crate::b::{self, X};");
        assert_eq!(found(&[root, a, ("b.rs", "use crate::{Name, c::Y};"), ("c.rs", "")]), [""; 0]);
        let by_root = ("c/inner.rs", "fn f() { crate::a::g() }");
        assert_eq!(found(&[root, a, ("b.rs", "use crate::Name;"), by_root]), ["a, b, c"]);
        assert_eq!(found(&[root, a, ("b.rs", "use super::a;")]), ["a, b"]);
    }

    #[test]
    fn tests_comments_and_what_lies_in_a_module_are_none() {
        let root = ("lib.rs", "mod a; mod b;");
        let b = "// use crate::a;\n#[cfg(test)]\nmod tests { use crate::a::X; }";
        assert_eq!(found(&[root, ("a.rs", "use crate::b;"), ("b.rs", b)]), [""; 0]);
        let inner = ("a/inner.rs", "use super::X; use crate::a::Y;");
        assert_eq!(found(&[root, ("a.rs", "mod inner; use self::inner::Z;"), inner]), [""; 0]);
        let of_tests = ("b/tests.rs", "use crate::a;");
        assert_eq!(found(&[root, ("a.rs", "use crate::b;"), of_tests]), [""; 0]);
    }

    #[test]
    fn a_root_that_hands_on_all_of_a_module_hides_no_circle() {
        let root = ("lib.rs", "mod a; mod b; pub use a::*;");
        let a = ("a.rs", "use crate::b::X; pub struct Name; struct Own;");
        assert_eq!(found(&[root, a, ("b.rs", "use crate::Name;")]), ["a, b"]);
        assert_eq!(found(&[root, a, ("b.rs", "use crate::Own;")]), [""; 0]);
    }
}
