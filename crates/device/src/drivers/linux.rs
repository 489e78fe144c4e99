//! Vulkan finds drivers through descriptions, small files of JSON in known folders.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Setting;

/// Of a description.
const JSON_BYTES_MAX: u64 = 64 << 10;

/// Variables with paths of descriptions, the first that is set instead of all folders.
const INSTEAD: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
/// One with paths beside the folders.
const BESIDE: &str = "VK_ADD_DRIVER_FILES";
/// Below each folder of settings and data.
const FOLDER: &str = "vulkan/icd.d";

pub fn troubles(root: &Path, backend: &str, setting: Setting<'_>) -> Vec<String> {
    if backend == "vulkan" { Finder { root, setting }.troubles() } else { Vec::new() }
}

struct Finder<'a> {
    root: &'a Path,
    setting: Setting<'a>,
}

impl Finder<'_> {
    fn troubles(&self) -> Vec<String> {
        let named = self.named_by_settings();
        let missing = named.iter().filter(|(_, place)| !place.exists());
        let mut troubles: Vec<String> = missing
            .map(|(setting, place)| format!("{setting} names {}, which is not there", place.display()))
            .collect();
        let searched = self.searched();
        let places = named.into_iter().map(|(_, place)| place).chain(searched);
        let there = places.filter(|place| place.exists());
        for description in there.flat_map(|place| descriptions(&place)) {
            let name = description.display();
            let Some(library) = library_path(&description) else {
                troubles.push(format!("{name} describes no driver"));
                continue;
            };
            let path = self.described_path(&description, &library);
            let what = path.filter(|path| !is_library(path)).map(|path| match path.exists() {
                true => "which is no library",
                false => "which is not there",
            });
            troubles.extend(what.map(|what| format!("{name} names the library {library}, {what}")));
        }
        troubles
    }

    /// Places that environment variables name, with the variable.
    fn named_by_settings(&self) -> Vec<(&'static str, PathBuf)> {
        let given =
            |name: &'static str| Some((name, (self.setting)(name).filter(|paths| !paths.is_empty())?));
        let instead = INSTEAD.into_iter().find_map(given);
        let all = instead.into_iter().chain(given(BESIDE));
        all.flat_map(|(name, paths)| self.split(&paths).into_iter().map(move |path| (name, path))).collect()
    }

    /// Folders in which the loader looks by itself.
    fn searched(&self) -> Vec<PathBuf> {
        let is_set = |name: &&str| (self.setting)(name).is_some_and(|paths| !paths.is_empty());
        if INSTEAD.iter().any(is_set) {
            return Vec::new();
        }
        self.folders().iter().map(|folder| folder.join(FOLDER)).collect()
    }

    /// Of settings and data, the user's and the system's.
    fn folders(&self) -> Vec<PathBuf> {
        let home = (self.setting)("HOME").unwrap_or_default();
        let users = [("XDG_CONFIG_HOME", ".config"), ("XDG_DATA_HOME", ".local/share")];
        let users = users.map(|(name, otherwise)| {
            (self.setting)(name).unwrap_or_else(|| Path::new(&home).join(otherwise).into_os_string())
        });
        let shared = [("XDG_CONFIG_DIRS", "/etc/xdg"), ("XDG_DATA_DIRS", "/usr/local/share:/usr/share")];
        let shared = shared.map(|(name, otherwise)| (self.setting)(name).unwrap_or_else(|| otherwise.into()));
        let always = OsString::from("/usr/local/etc:/etc:/usr/share");
        users.iter().chain(&shared).chain([&always]).flat_map(|paths| self.split(paths)).collect()
    }

    /// Where a description says its library is: from the description on, or from the root. A name without a
    /// path is for the system's linker to find.
    fn described_path(&self, description: &Path, library: &str) -> Option<PathBuf> {
        match library.starts_with('/') {
            true => self.split(library.as_ref()).pop(),
            false => {
                description.parent().filter(|_| library.contains('/')).map(|folder| folder.join(library))
            }
        }
    }

    /// Paths with colons between them. Those from the root of the system are below ours.
    fn split(&self, paths: &OsStr) -> Vec<PathBuf> {
        let paths = std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty());
        paths.map(|path| path.strip_prefix("/").map(|rest| self.root.join(rest)).unwrap_or(path)).collect()
    }
}

/// The descriptions at a place, which may be one.
fn descriptions(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return vec![place.to_owned()] };
    let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    entries.flatten().map(|entry| entry.path()).filter(is_json).collect()
}

/// By its first bytes.
fn is_library(path: &Path) -> bool {
    let mut first = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"\x7fELF"
}

/// Of a driver, or of a layer between it and us.
fn library_path(description: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(description).ok()?.take(JSON_BYTES_MAX).read_to_string(&mut text).ok()?;
    let description: serde_json::Value = serde_json::from_str(&text).ok()?;
    let path = ["ICD", "layer"].iter().find_map(|kind| description[kind]["library_path"].as_str());
    path.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::driver_troubles;
    use super::*;

    /// A system in a folder.
    struct System {
        root: tempfile::TempDir,
        settings: BTreeMap<&'static str, OsString>,
    }

    impl System {
        fn new() -> Self {
            Self { root: tempfile::tempdir().unwrap(), settings: BTreeMap::new() }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    const ICD: &str = r#"{"ICD": {"library_path": "libvulkan_a.so"}}"#;

    #[test]
    fn descriptions_that_lead_nowhere_are_told() {
        let mut system = System::new();
        let troubles = |system: &System, source: &str| {
            let setting = |name: &str| system.settings.get(name).cloned();
            let all = driver_troubles(system.root.path(), source, &setting);
            all.join("; ").replace(system.root.path().to_str().unwrap(), "")
        };
        assert_eq!(troubles(&system, "vulkan"), "");
        // One that the linker finds, one that is there, and a layer are no trouble.
        system.write("usr/share/vulkan/icd.d/a.json", ICD);
        system.write("usr/share/vulkan/icd.d/b.json", r#"{"ICD": {"library_path": "./b.so"}}"#);
        system.write("usr/share/vulkan/icd.d/b.so", "\x7fELF and so on");
        system.write("usr/share/vulkan/implicit_layer.d/l.json", "{}");
        assert_eq!(troubles(&system, "vulkan"), "");
        system.write("usr/share/vulkan/icd.d/b.so", "a text");
        system.write("etc/vulkan/icd.d/c.json", r#"{"ICD": {"library_path": "/opt/c.so"}}"#);
        system.write("etc/vulkan/icd.d/d.json", "{");
        assert_eq!(
            troubles(&system, "vulkan"),
            "/etc/vulkan/icd.d/c.json names the library /opt/c.so, which is not there; \
             /etc/vulkan/icd.d/d.json describes no driver; \
             /usr/share/vulkan/icd.d/b.json names the library ./b.so, which is no library"
        );
        assert_eq!(troubles(&system, "cuda"), "");
        system.settings.insert("VK_ICD_FILENAMES", "/none.json".into());
        assert_eq!(troubles(&system, "vulkan"), "VK_ICD_FILENAMES names /none.json, which is not there");
    }
}
