//! `fuzz/` is a workspace of its own with a lockfile of its own: it has to hold the crates as they are here,
//! in the versions that are tested here. Cargo itself would look at it only when somebody fuzzes.

use std::collections::{BTreeMap, BTreeSet};

use crate::run;

const FUZZ: &str = "fuzz/Cargo.lock";

/// A package of a lockfile.
#[derive(Default, PartialEq, Debug)]
pub struct Package {
    version: String,
    is_ours: bool,
    pub dependencies: BTreeSet<String>,
    /// The same; with the version, where there are several of one name.
    pub exact: Vec<String>,
}

impl Package {
    /// Whether `wanted` of [`Package::exact`] means this one of its name.
    pub fn is_meant(&self, wanted: &str) -> bool {
        wanted.split_once(' ').is_none_or(|(_, version)| version == self.version)
    }
}

/// A package may be there in several versions.
pub type Lock = BTreeMap<String, Vec<Package>>;

/// A line for each package in which the two lockfiles, or the fuzz targets' and our manifests, differ.
pub fn disagreements() -> anyhow::Result<Vec<String>> {
    let (ours, fuzz) = (parse(&run::read("Cargo.lock")?), parse(&run::read(FUZZ)?));
    let mut found = other_versions(&ours, &fuzz);
    for (name, package) in fuzz.iter().flat_map(|(name, all)| all.iter().map(move |package| (name, package)))
    {
        let Some(folder) = name.strip_prefix("exo-").filter(|_| package.is_ours && ours.contains_key(name))
        else {
            continue;
        };
        let needed = needed(&run::read(format!("crates/{folder}/Cargo.toml"))?);
        if needed != package.dependencies {
            let differ: Vec<_> = needed.symmetric_difference(&package.dependencies).cloned().collect();
            found.push(format!("{name} differs in what it needs ({})", differ.join(", ")));
        }
    }
    let text = |what| {
        format!(
            "{FUZZ}: {what}; `cargo metadata --manifest-path fuzz/Cargo.toml` mends it, or `cargo update` there"
        )
    };
    Ok(found.into_iter().map(text).collect())
}

fn other_versions(ours: &Lock, fuzz: &Lock) -> Vec<String> {
    let mut found = Vec::new();
    for (name, packages) in fuzz {
        let Some(known) = ours.get(name) else { continue };
        let known: BTreeSet<&str> = known.iter().map(|package| package.version.as_str()).collect();
        let others = packages.iter().filter(|package| !known.contains(package.version.as_str()));
        let known: Vec<&str> = known.iter().copied().collect();
        found.extend(
            others.map(|package| format!("{name} {} is {} here", package.version, known.join(" and "))),
        );
    }
    found
}

/// As cargo writes it: a key in each line, dependencies in lines of their own.
pub fn parse(text: &str) -> Lock {
    let mut lock = Lock::new();
    for block in text.split("[[package]]").skip(1) {
        let value = |key: &str| {
            block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        let (Some(name), Some(version)) = (value("name"), value("version")) else { continue };
        let listed = block.split("dependencies = [").nth(1).and_then(|rest| rest.split(']').next());
        // Behind a name its version stands where there are several.
        let lines = listed.unwrap_or_default().lines().map(str::trim);
        let exact: Vec<String> =
            lines.filter_map(|line| line.strip_prefix('"')?.split('"').next()).map(str::to_owned).collect();
        let dependencies = exact.iter().filter_map(|one| one.split(' ').next()).map(str::to_owned).collect();
        let (version, is_ours) = (version.to_owned(), value("source").is_none());
        let package = Package { version, is_ours, dependencies, exact };
        lock.entry(name.to_owned()).or_default().push(package);
    }
    lock
}

/// What a manifest needs on any system, tests aside: lockfiles hold that of all systems.
pub fn needed(manifest: &str) -> BTreeSet<String> {
    let (mut is_list, mut found) = (false, BTreeSet::new());
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            is_list = table == "dependencies]"
                || (table.starts_with("target.") && table.ends_with(".dependencies]"));
        } else if is_list && !line.starts_with('#') {
            let name = line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "version = 4\n\n[[package]]\nname = \"exo-types\"\nversion = \"0.1.0\"\ndependencies = [\n \"serde\",\n \
                        \"syn 2.0.1\",\n]\n\n[[package]]\nname = \"serde\"\nversion = \"1.0.2\"\nsource = \"registry\"\n";

    #[test]
    fn a_lockfile_is_read() {
        let lock = parse(OURS);
        let dependencies = ["serde", "syn"].map(str::to_owned).into();
        let exact = ["serde", "syn 2.0.1"].map(str::to_owned).into();
        let package = Package { version: "0.1.0".to_owned(), is_ours: true, dependencies, exact };
        assert_eq!(lock["exo-types"], [package]);
        assert!(lock["serde"][0].is_meant("serde") && lock["serde"][0].is_meant("serde 1.0.2"));
        assert!(!lock["serde"][0].is_meant("serde 2.0.0"));
        assert!(!lock["serde"][0].is_ours && lock["serde"][0].dependencies.is_empty());
    }

    #[test]
    fn another_version_is_told_and_a_package_of_one_side_is_not() {
        let fuzz = parse(&OURS.replace("1.0.2", "1.0.1").replace("exo-types", "exo-fuzz"));
        assert_eq!(other_versions(&parse(OURS), &fuzz), ["serde 1.0.1 is 1.0.2 here"]);
        assert!(other_versions(&parse(OURS), &parse(OURS)).is_empty());
    }

    #[test]
    fn what_a_manifest_needs_is_that_of_all_systems_without_tests() {
        let manifest = "[dependencies]\nserde.workspace = true\n# no more\nsyn = \"2\"\n\n[target.'cfg(unix)'.dependencies]\n\
                        rustix = { workspace = true }\n[dev-dependencies]\ninsta.workspace = true\n";
        assert_eq!(needed(manifest), ["rustix", "serde", "syn"].map(str::to_owned).into());
    }
}
