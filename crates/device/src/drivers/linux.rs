//! Vulkan finds drivers through descriptions, small files of JSON in known folders; the makers' own are found by the
//! names of their libraries.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Parts, Setting};

/// Of a description.
const JSON_BYTES_MAX: u64 = 64 << 10;

/// How the loader of an interface finds descriptions.
struct Loader {
    /// Its own library.
    library: &'static str,
    /// Variables with paths of descriptions, the first that is set instead of all folders.
    instead: &'static [&'static str],
    /// One with paths beside the folders.
    beside: &'static str,
    /// Folders of descriptions below each folder of settings and data: drivers first, then what comes between.
    folders: &'static [&'static str],
    /// Other variables that choose.
    others: &'static [&'static str],
}

const VULKAN: Loader = Loader {
    library: "libvulkan.so.1",
    instead: &["VK_DRIVER_FILES", "VK_ICD_FILENAMES"],
    beside: "VK_ADD_DRIVER_FILES",
    folders: &["vulkan/icd.d", "vulkan/implicit_layer.d"],
    others: &["VK_INSTANCE_LAYERS", "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE"],
};

const SEARCH: &str = "LD_LIBRARY_PATH";

pub fn parts(root: &Path, source: &str, setting: Setting<'_>) -> Parts {
    let find = Finder { root, setting };
    let mut parts = match source {
        "vulkan" => find.described(&VULKAN),
        "cuda" => find.named(&["libcuda.so.1"], "CUDA_VISIBLE_DEVICES"),
        "hip" => {
            let names = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];
            find.named(&names, "HIP_VISIBLE_DEVICES")
        }
        _ => Parts::default(),
    };
    parts.settings.push(SEARCH);
    parts
}

pub fn troubles(root: &Path, source: &str, setting: Setting<'_>) -> Vec<String> {
    let find = Finder { root, setting };
    match source {
        "vulkan" => find.troubles(&VULKAN),
        _ => Vec::new(),
    }
}

struct Finder<'a> {
    root: &'a Path,
    setting: Setting<'a>,
}

impl Finder<'_> {
    fn named(&self, libraries: &[&str], hides: &'static str) -> Parts {
        let files = libraries.iter().flat_map(|name| self.library(name.as_ref())).collect();
        Parts { settings: vec![hides], files }
    }

    fn described(&self, loader: &Loader) -> Parts {
        let named = self.named_by_settings(loader).into_iter().map(|(_, place)| place);
        let places = named.chain(self.searched(loader, loader.folders));
        let descriptions: Vec<PathBuf> = places.flat_map(|place| descriptions(&place)).collect();
        let mut files = self.library(loader.library.as_ref());
        files.extend(descriptions.iter().flat_map(|path| self.described_library(path)));
        files.extend(descriptions);
        let all = [loader.instead, &[loader.beside], loader.others].concat();
        Parts { settings: all.into_iter().filter(|name| !name.is_empty()).collect(), files }
    }

    fn troubles(&self, loader: &Loader) -> Vec<String> {
        let named = self.named_by_settings(loader);
        let missing = named.iter().filter(|(_, place)| !place.exists());
        let mut troubles: Vec<String> = missing
            .map(|(setting, place)| format!("{setting} names {}, which is not there", place.display()))
            .collect();
        let searched = self.searched(loader, &loader.folders[..1]);
        let places = named.into_iter().map(|(_, place)| place).chain(searched);
        let there = places.filter(|place| place.exists());
        for description in there.flat_map(|place| descriptions(&place)) {
            let name = description.display();
            let Some(library) = library_path(&description) else {
                troubles.push(format!("{name} describes no driver"));
                continue;
            };
            // A name without a path is for the system's linker to find.
            let path = self.described_library(&description).into_iter().find(|_| library.contains('/'));
            let what = path.filter(|path| !is_library(path)).map(|path| match path.exists() {
                true => "which is no library",
                false => "which is not there",
            });
            troubles.extend(what.map(|what| format!("{name} names the library {library}, {what}")));
        }
        troubles
    }

    /// Places that environment variables name, with the variable.
    fn named_by_settings(&self, loader: &Loader) -> Vec<(&'static str, PathBuf)> {
        let given =
            |name: &'static str| Some((name, (self.setting)(name).filter(|paths| !paths.is_empty())?));
        let instead = loader.instead.iter().find_map(|&name| given(name));
        let all = instead.into_iter().chain(given(loader.beside));
        all.flat_map(|(name, paths)| self.split(&paths).into_iter().map(move |path| (name, path))).collect()
    }

    /// Folders in which a loader looks by itself.
    fn searched(&self, loader: &Loader, below: &[&str]) -> Vec<PathBuf> {
        let is_set = |name: &&str| (self.setting)(name).is_some_and(|paths| !paths.is_empty());
        if loader.instead.iter().any(is_set) {
            return Vec::new();
        }
        self.folders().iter().flat_map(|folder| below.iter().map(|end| folder.join(end))).collect()
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

    /// Paths with colons between them. Those from the root of the system are below ours.
    fn split(&self, paths: &OsStr) -> Vec<PathBuf> {
        let paths = std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty());
        paths.map(|path| path.strip_prefix("/").map(|rest| self.root.join(rest)).unwrap_or(path)).collect()
    }

    /// The library that a description names: a path, from the description on, or a name to search.
    fn described_library(&self, description: &Path) -> Vec<PathBuf> {
        let named = library_path(description);
        match named {
            Some(name) if name.starts_with('/') => self.split(name.as_ref()),
            Some(name) if name.contains('/') => {
                description.parent().map(|folder| folder.join(name)).into_iter().collect()
            }
            Some(name) => self.library(name.as_ref()),
            None => Vec::new(),
        }
    }

    /// Where the system's linker would look: all there are, for which of them it takes is its business.
    fn library(&self, name: &OsStr) -> Vec<PathBuf> {
        let own = (self.setting)(SEARCH).unwrap_or_default();
        let arch = std::env::consts::ARCH;
        let system = format!(
            "/usr/lib/{arch}-linux-gnu:/usr/lib64:/usr/lib:/usr/local/lib:/lib/{arch}-linux-gnu:/lib64:/lib:\
             /run/opengl-driver/lib:/usr/lib/wsl/lib:/opt/rocm/lib"
        );
        let folders = [own, system.into()];
        folders.iter().flat_map(|paths| self.split(paths)).map(|folder| folder.join(name)).collect()
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
    use std::time::{Duration, SystemTime};

    use super::super::{driver_files, driver_troubles};
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

        fn files(&self, source: &str) -> Vec<String> {
            driver_files(self.root.path(), source, &|name| self.settings.get(name).cloned())
        }

        /// Names of the files and of settings.
        fn names(&self, source: &str) -> Vec<String> {
            let root = fs::canonicalize(self.root.path()).unwrap();
            let name = |line: String| line.split(' ').next().unwrap().replace(root.to_str().unwrap(), "");
            self.files(source).into_iter().map(name).collect()
        }
    }

    const ICD: &str = r#"{"ICD": {"library_path": "libvulkan_a.so"}}"#;

    #[test]
    fn a_driver_is_its_descriptions_and_the_libraries_that_they_name() {
        let mut system = System::new();
        assert!(system.files("vulkan").is_empty() && system.files("cuda").is_empty());
        system.write("usr/share/vulkan/icd.d/a.json", ICD);
        system.write("usr/share/vulkan/icd.d/notes.txt", "no description");
        system.write("etc/vulkan/icd.d/b.json", r#"{"ICD": {"library_path": "../b.so"}}"#);
        system.write("etc/vulkan/icd.d/broken.json", "{");
        system.write("usr/lib/libvulkan_a.so", "a");
        system.write("etc/vulkan/b.so", "b");
        system.write("usr/lib/libcuda.so.1", "c");
        let all = [
            "/etc/vulkan/b.so",
            "/etc/vulkan/icd.d/b.json",
            "/etc/vulkan/icd.d/broken.json",
            "/usr/lib/libvulkan_a.so",
            "/usr/share/vulkan/icd.d/a.json",
        ];
        assert_eq!(system.names("vulkan"), all);
        assert_eq!(system.names("cuda"), ["/usr/lib/libcuda.so.1"]);
        assert!(system.files("metal").is_empty());
        // One that is named stands for all of the folders.
        system.settings.insert("VK_DRIVER_FILES", "/etc/vulkan/icd.d/b.json".into());
        let named =
            ["/etc/vulkan/b.so", "/etc/vulkan/icd.d/b.json", "VK_DRIVER_FILES=/etc/vulkan/icd.d/b.json"];
        assert_eq!(system.names("vulkan"), named);
    }

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

    #[test]
    fn another_version_another_setting_and_another_kernel_module_are_another_driver() {
        let mut system = System::new();
        system.write("usr/share/vulkan/icd.d/a.json", ICD);
        system.write("usr/lib/libvulkan_a.so", "1");
        let mut before = system.files("vulkan");
        assert_eq!(before, system.files("vulkan"));
        let mut is_another = |system: &System, what: &str| {
            let now = system.files("vulkan");
            assert_ne!(now, before, "{what}");
            before = now;
        };
        system.write("usr/lib/libvulkan_a.so", "1.1");
        is_another(&system, "a library of another size");
        let library = File::options().write(true).open(system.root.path().join("usr/lib/libvulkan_a.so"));
        library.unwrap().set_modified(SystemTime::now() - Duration::from_secs(86_400)).unwrap();
        is_another(&system, "a library of another time");
        system.write("usr/share/vulkan/icd.d/b.json", "{}");
        is_another(&system, "one more description");
        system.settings.insert("LD_LIBRARY_PATH", "/opt/lib".into());
        is_another(&system, "another place for libraries");
        for (file, text) in [("class", "0x030000"), ("vendor", "0x1002"), ("device", "0x744c")] {
            system.write(&format!("sys/bus/pci/devices/0000:01:00.0/{file}"), text);
        }
        is_another(&system, "one more card");
    }
}
