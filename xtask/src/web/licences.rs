//! Licences of the page's packages, held against the same list as those of the Rust ones.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::licences::allowed;
use crate::run;

/// Packages of other licences that build or test the page and are no part of it.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Checks the page for people who cannot see it or use no mouse, in tests.
    ("axe-core", "MPL-2.0"),
    // Makes style sheets smaller, within Vite.
    ("lightningcss", "MPL-2.0"),
    // Permissive, and of jsdom, which plays the browser in unit tests.
    ("lru-cache", "BlueOak-1.0.0"),
];

/// Every package that is installed.
pub fn check_lockfile(path: &Path) -> anyhow::Result<()> {
    let lock = read(path)?;
    let packages = lock["packages"].as_object().context("the lockfile lists no packages")?;
    let mut bad = Vec::new();
    for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
        let name = place.rsplit("node_modules/").next().unwrap_or(place);
        let licence = package["license"].as_str().unwrap_or("none stated");
        let is_exception = package["dev"] == true && excepted(name, licence);
        if !allowed(licence) && !is_exception {
            bad.push(format!("  {name} {}: {licence}", package["version"].as_str().unwrap_or("")));
        }
    }
    answer(bad, packages.len() - 1, "installed")
}

/// Every package that a part of is in what browsers get: no exceptions, and its text must be there for the
/// page to show.
pub fn check_bundled(path: &Path) -> anyhow::Result<()> {
    let list = read(path)?;
    let packages = list.as_array().context("the list of bundled packages is none")?;
    let mut bad = Vec::new();
    for package in packages {
        let field = |name: &str| package[name].as_str().unwrap_or("");
        if !allowed(field("identifier")) {
            bad.push(format!("  {} {}: {}", field("name"), field("version"), field("identifier")));
        } else if field("text").is_empty() {
            bad.push(format!("  {} {}: has no text of its licence", field("name"), field("version")));
        }
    }
    answer(bad, packages.len(), "in the page")
}

fn excepted(name: &str, licence: &str) -> bool {
    // `lightningcss` comes with a package for each system.
    EXCEPTIONS
        .iter()
        .any(|(known, its)| *its == licence && (name == *known || name.starts_with(&format!("{known}-"))))
}

fn read(path: &Path) -> anyhow::Result<Value> {
    serde_json::from_str(&run::read(path)?).with_context(|| format!("{} is no JSON", path.display()))
}

fn answer(bad: Vec<String>, count: usize, which: &str) -> anyhow::Result<()> {
    if count == 0 {
        bail!("no package is {which}");
    }
    if !bad.is_empty() {
        bail!(
            "these licences are neither on the list in xtask/src/licences.rs nor excepted in xtask/src/web/licences.rs\n{}",
            bad.join("\n")
        );
    }
    eprintln!("web: licences of {count} packages {which}, all allowed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(check: fn(&Path) -> anyhow::Result<()>, json: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.json");
        std::fs::write(&path, json).unwrap();
        check(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_installed_is_allowed_or_excepted_where_it_only_builds() {
        let lock = |packages: &str| format!(r#"{{"packages":{{"":{{}},{packages}}}}}"#);
        let check = |packages: &str| checked(check_lockfile, &lock(packages));
        assert!(check(r#""node_modules/a":{"license":"MIT"}"#).is_ok());
        assert!(
            check(r#""node_modules/lightningcss-linux-x64-gnu":{"license":"MPL-2.0","dev":true}"#).is_ok()
        );
        let shipped =
            check(r#""node_modules/a/node_modules/lightningcss":{"license":"MPL-2.0","version":"1"}"#);
        assert!(shipped.unwrap_err().ends_with("lightningcss 1: MPL-2.0"));
        assert!(check(r#""node_modules/b":{"version":"2"}"#).unwrap_err().ends_with("b 2: none stated"));
        assert!(checked(check_lockfile, r#"{"packages":{"":{}}}"#).is_err());
    }

    #[test]
    fn what_is_in_the_page_has_an_allowed_licence_and_its_text() {
        let good = r#"[{"name":"a","version":"1","identifier":"MIT","text":"Copyright"}]"#;
        assert!(checked(check_bundled, good).is_ok());
        assert!(checked(check_bundled, &good.replace("MIT", "MPL-2.0")).is_err());
        assert!(checked(check_bundled, &good.replace("Copyright", "")).unwrap_err().contains("no text"));
    }
}
