//! The pure crates: values in, values out. Their logic runs in a simulator, many nodes to a thread and the
//! same for the same seed, so nothing in it may ask the system for anything, share memory between nodes, or
//! depend on the order of a hash table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::lockfile::{self, Lock};
use super::tokens::{Source, Token};
use crate::run;

/// Without `exo-`; one that does not exist is skipped.
const PURE: [&str; 8] =
    ["types", "planner", "membership", "cluster", "identity", "trust", "machine", "telemetry"];
/// Crates that none of them may depend on, however far away. No pure crate needs an exception.
const CRATES: [&str; 8] = ["tokio", "quinn", "redb", "getrandom", "rand", "rustix", "socket2", "mio"];
/// Modules of `std` that ask the system.
const MODULES: [&str; 6] = ["fs", "io", "os", "thread", "process", "env"];
/// Names that stand for the outside or for what is shared, and what to do instead.
const NAMES: [(&str, &str); 23] = [
    ("Instant", "time comes in with each input"),
    ("SystemTime", "time comes in with each input"),
    ("TcpStream", "a link is an id, its bytes are the node's"),
    ("TcpListener", "a link is an id, its bytes are the node's"),
    ("UdpSocket", "a link is an id, its bytes are the node's"),
    ("UnixStream", "a link is an id, its bytes are the node's"),
    ("UnixListener", "a link is an id, its bytes are the node's"),
    ("HashMap", "its order differs from run to run; take a BTreeMap"),
    ("HashSet", "its order differs from run to run; take a BTreeSet"),
    ("RandomState", "it differs from run to run; hash with blake3"),
    ("DefaultHasher", "it differs from version to version; hash with blake3"),
    ("Mutex", "nothing is shared; own it or hand it over"),
    ("RwLock", "nothing is shared; own it or hand it over"),
    ("Condvar", "nothing is shared; own it or hand it over"),
    ("mpsc", "nothing is shared; own it or hand it over"),
    ("OnceLock", "nothing is shared; own it or hand it over"),
    ("LazyLock", "nothing is shared; own it or hand it over"),
    ("static", "nodes in one process would share it; make it a field or a `const`"),
    ("thread_local", "nodes in one process would share it; make it a field"),
    ("SigningKey", "who has the key signs: the bytes go out, the signature comes back"),
    ("SecretKey", "who has the key signs: the bytes go out, the signature comes back"),
    ("Keypair", "who has the key signs: the bytes go out, the signature comes back"),
    ("async", "an effect goes out, its answer comes back as an input"),
];
/// The crate whose tests are counted, and how many lines of them there are for a line of code.
const COUNTED: (&str, f64) = ("machine", 0.4);

/// A line for each thing in the pure crates that is not pure.
pub fn impure(files: &[PathBuf], sources: &[Source<'_>]) -> anyhow::Result<Vec<String>> {
    let mut needs = BTreeMap::new();
    for manifest in files.iter().filter(|file| file.starts_with("crates") && file.ends_with("Cargo.toml")) {
        let folder = manifest.parent().and_then(Path::file_name).unwrap_or_default();
        needs.insert(format!("exo-{}", folder.display()), lockfile::needed(&run::read(manifest)?));
    }
    let lock = lockfile::parse(&run::read("Cargo.lock")?);
    let mut complaints = dependencies(&lock, &needs);
    for name in PURE {
        let folder = Path::new("crates").join(name);
        let own = sources.iter().filter(|source| source.path.starts_with(&folder));
        let own: Vec<&Source<'_>> = own.collect();
        complaints.extend(own.iter().flat_map(|source| impurities(source)));
        if name == COUNTED.0 {
            complaints.extend(too_few_tests(name, &own, COUNTED.1));
        }
    }
    Ok(complaints)
}

/// Walks what each pure crate needs, on any system and its build scripts included: that is what a lockfile
/// tells. `needs` has the dependencies of our own crates, without those of their tests.
fn dependencies(lock: &Lock, needs: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut complaints = Vec::new();
    for pure in PURE.map(|name| format!("exo-{name}")) {
        // Each with the one it was reached from, so that the way is told.
        let (mut from, mut queue) = (BTreeMap::new(), vec![pure.as_str()]);
        while let Some(at) = queue.pop() {
            let name = name_of(at);
            let meant = |package: &&lockfile::Package| package.is_meant(at);
            let locked =
                || lock.get(name).into_iter().flatten().filter(meant).flat_map(|package| &package.exact);
            let next: Vec<&String> =
                needs.get(name).map_or_else(|| locked().collect(), |own| own.iter().collect());
            for next in next {
                from.entry(next.as_str()).or_insert_with(|| {
                    queue.push(next);
                    at
                });
            }
        }
        for name in CRATES {
            let Some(last) = from.keys().copied().find(|at| name_of(at) == name) else { continue };
            let way = std::iter::successors(Some(last), |at| from.get(at).copied());
            let mut way: Vec<&str> = way.map(name_of).collect();
            way.reverse();
            complaints.push(format!("{pure} is pure and depends on {name}: {}", way.join(" -> ")));
        }
    }
    complaints
}

/// A dependency without its version.
fn name_of(dependency: &str) -> &str {
    dependency.split(' ').next().unwrap_or(dependency)
}

/// What is wrong in a file.
fn impurities(source: &Source<'_>) -> Vec<String> {
    let Source { path, tokens, .. } = source;
    let complaint = |at: usize| {
        let why = forbidden(tokens, at)?;
        Some(format!("{}:{}: {why}", path.display(), tokens[at].line))
    };
    source.code().filter_map(complaint).collect()
}

/// Lines with something else than comments count.
fn too_few_tests(name: &str, sources: &[&Source<'_>], ratio_min: f64) -> Option<String> {
    let lines = |source: &Source<'_>, of_tests: bool| {
        let all = source.tokens.iter().enumerate();
        let some = all.filter(|(at, _)| of_tests == (source.is_test || source.tests.has(*at)));
        some.map(|(_, token)| token.line).collect::<BTreeSet<_>>().len()
    };
    let count = |of_tests| sources.iter().map(|source| lines(source, of_tests)).sum::<usize>();
    let (code, test) = (count(false), count(true));
    let ratio = test as f64 / code.max(1) as f64;
    (ratio < ratio_min).then(|| {
        format!("crates/{name}: {test} lines of tests for {code} of code, a ratio of {ratio:.2}; {ratio_min} is the least")
    })
}

/// What is wrong with the name at `at`, and what to do instead.
fn forbidden(tokens: &[Token<'_>], at: usize) -> Option<String> {
    let name = tokens[at].text;
    if let Some((_, instead)) = NAMES.iter().find(|(forbidden, _)| *forbidden == name) {
        return Some(format!("`{name}` in a pure crate: {instead}"));
    }
    if name.strip_prefix("Atomic").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_uppercase))
    {
        return Some(format!("`{name}` in a pure crate: nothing is shared; own it or hand it over"));
    }
    let module = system_module(tokens, at)?;
    Some(format!("`std::{module}` in a pure crate: an effect goes out, its answer comes back as an input"))
}

/// The module of `std` that is named from here on, alone or in a list.
fn system_module<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    let texts: Vec<&str> = tokens[at..].iter().take(4).map(|token| token.text).collect();
    let ["std", ":", ":", first] = texts[..] else { return None };
    if MODULES.contains(&first) {
        return Some(first);
    }
    let (mut depth, mut before) = (0, "");
    for token in tokens[at + 3..].iter().take_while(|token| token.text != ";") {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            name if depth == 1 && matches!(before, "{" | ",") && MODULES.contains(&name) => {
                return Some(name);
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = token.text;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tokens::sources;
    use super::*;

    /// The lines of `crates/machine/src/lib.rs` that are refused, other files beside it.
    fn check_files(files: &[(&str, &str)]) -> Vec<String> {
        let folder = Path::new("crates/machine/src");
        let texts = files.iter().map(|(path, text)| (folder.join(path), (*text).to_owned()));
        let mut texts: Vec<(PathBuf, String)> = texts.collect();
        texts.sort();
        let told: Vec<String> = sources(&texts).iter().flat_map(impurities).collect();
        told.iter()
            .map(|line| {
                let place = line.split(": ").next().unwrap_or_default();
                place.strip_prefix("crates/machine/src/").unwrap_or_default().to_owned()
            })
            .collect()
    }

    fn is_refused(text: &str) -> bool {
        !check_files(&[("lib.rs", text)]).is_empty()
    }

    #[test]
    fn each_of_these_is_refused() {
        for text in [
            "use std::fs;",
            "fn f() { std::fs::read(\"a\"); }",
            "use std::thread::spawn;",
            "use std::{collections::BTreeMap, process};",
            "use std::{fmt, fs::{self, File}};",
            "use std :: env;",
            "let now = Instant::now();",
            "use std::time::SystemTime;",
            "fn f(s: &TcpStream) {}",
            "use std::net::{SocketAddr, UdpSocket};",
            "struct S(std::net::TcpListener);",
            "use std::os::unix::net::UnixStream;",
            "fn f(l: UnixListener) {}",
            "use std::io::Write;",
            "use std::{fmt, io};",
            "use std::sync::mpsc;",
            "a: Condvar,",
            "let a = RandomState::new();",
            "DefaultHasher::new()",
            "key: ed25519_dalek::SecretKey,",
            "fn f(k: &Keypair) {}",
            "static COUNT: u64 = 0;",
            "pub(crate) static mut A: u8 = 0;",
            "thread_local! { const A: u8 = 0; }",
            "type M = HashMap<u8, u8>;",
            "use hashbrown::HashSet;",
            "use std::sync::{Arc, Mutex};",
            "a: AtomicU64,",
            "async fn f() {}",
            "let a = async move { 1 };",
            "let a = async { 1 };",
            "#[cfg(test)] mod tests {} use std::fs;",
            "#[cfg(not(test))] use std::fs;",
        ] {
            assert!(is_refused(text), "{text}");
        }
    }

    #[test]
    fn each_of_these_is_fine() {
        for text in [
            "// std::fs, Instant and HashMap are explained here",
            "/// A `Mutex` would do.\nfn f() {}",
            "let a = \"std::fs and async { Instant }\";",
            "fn f() -> &'static str { \"\" }",
            "use std::net::SocketAddr;",
            "use std::{fmt, collections::{BTreeMap, process}};",
            "const INSTANT_MAX: u8 = 1; struct Instantly; struct Atomics;",
            "mod fs; use crate::fs; use self::thread; mod io; pub use io::Input;",
            "#[cfg(test)] mod tests { use std::fs; use std::collections::HashMap; }",
            "#[cfg(test)]\nuse std::time::Instant;\nfn f() {}",
        ] {
            assert!(!is_refused(text), "{text}");
        }
    }

    #[test]
    fn files_of_tests_are_not_read_and_their_neighbours_are() {
        let bad = "use std::fs;";
        let modules = "#[cfg(test)] mod testing; mod code; #[cfg(test)] #[path = \"x.rs\"] mod y;";
        let told = check_files(&[
            ("lib.rs", modules),
            ("testing.rs", bad),
            ("testing/more.rs", bad),
            ("x.rs", bad),
            ("tests.rs", bad),
            ("code.rs", "fn f() {}\n#[cfg(test)] mod proofs;\nuse std::fs;"),
            ("code/tests/one.rs", bad),
            ("code/proofs.rs", bad),
            ("code/work.rs", bad),
            ("y.rs", bad),
        ]);
        assert_eq!(told, ["code/work.rs:1", "code.rs:3", "y.rs:1"]);
    }

    #[test]
    fn lines_of_tests_are_held_against_lines_of_code() {
        let code = "// a comment\nfn f() {\n    1\n}\n\nfn g() {}\n#[cfg(test)]\nmod tests {\n    x\n}\n";
        let told = |ratio_min| {
            let texts = [
                (PathBuf::from("crates/machine/src/lib.rs"), code.to_owned()),
                (PathBuf::from("crates/machine/tests/all.rs"), "a\n\n// b\nc".to_owned()),
            ];
            let sources = sources(&texts);
            too_few_tests("machine", &sources.iter().collect::<Vec<_>>(), ratio_min)
        };
        assert_eq!(told(1.5), None, "six lines for four");
        let few = told(1.6).unwrap();
        assert!(few.contains("6 lines of tests for 4 of code, a ratio of 1.50"), "{few}");
    }

    #[test]
    fn a_dependency_is_found_however_far_away_with_the_way_to_it() {
        let packages = [("dice", "getrandom"), ("getrandom", "libc"), ("libc", ""), ("tokio", "libc")];
        let block = |(name, needs)| {
            format!(
                "[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\ndependencies = [\n \"{needs}\",\n]\n"
            )
        };
        let lock = lockfile::parse(&packages.map(block).concat());
        let manifest = |name: &str, normal: &str| {
            let text = format!("[dependencies]\n{normal}\n[dev-dependencies]\ntokio.workspace = true\n");
            (name.to_owned(), lockfile::needed(&text))
        };
        let needs = BTreeMap::from([
            manifest("exo-types", ""),
            manifest("exo-cluster", "exo-types.workspace = true\ndice = \"1\""),
            manifest("exo-node", "tokio.workspace = true"),
        ]);
        let told = dependencies(&lock, &needs);
        assert_eq!(told, ["exo-cluster is pure and depends on getrandom: exo-cluster -> dice -> getrandom"]);
    }
}
