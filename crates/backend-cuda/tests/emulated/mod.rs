//! A driver that plays cards on the processor, NVIDIA's and AMD's: built from the kernels' sources, and used
//! by a child process. The tests of the binary use it too.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its part; helpers of tests fail by panicking

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SETTING: &str = "EXO_EMULATED";

/// Runs `body` in a child process whose drivers are the emulated one. `test` is the name of the calling test.
pub fn on_emulated_cards(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(SETTING).is_some() {
        return body();
    }
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new(exe);
    child.args(["--exact", test, "--nocapture"]).env(SETTING, "1").envs(settings.iter().copied());
    let output = child.env("LD_LIBRARY_PATH", library()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("backend-cuda")
}

/// The folder of the emulated `libcuda.so`, which is `libamdhip64.so` too, built if it is older than its
/// sources.
pub fn library() -> PathBuf {
    let root = home();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-cuda");
    std::fs::create_dir_all(&folder).unwrap();
    // Tests are processes of their own: one builds, the others wait.
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let target = folder.join("libcuda.so");
    let files = |folder: &str| -> Vec<PathBuf> {
        std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let all = [files("kernels"), files("tests/emulated")].concat();
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified());
    let built = changed(&target).ok();
    if all.iter().any(|path| built.is_none_or(|built| changed(path).unwrap() > built)) {
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|end| end == "cu" || end == "cpp");
        let sources: Vec<&PathBuf> = all.iter().filter(is_source).collect();
        build(&folder, &sources, &target);
    }
    folder
}

fn build(folder: &Path, sources: &[&PathBuf], target: &Path) {
    let mut objects = Vec::new();
    for half in sources.chunks(sources.len().div_ceil(2)) {
        let compile = half.iter().map(|source| {
            let object = folder.join(source.file_name().unwrap()).with_extension("o");
            objects.push(object.clone());
            let include = format!("-I{}", home().join("tests/emulated").display());
            let mut command = Command::new("c++");
            command.args(["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w"]);
            command.args(["-DEXO_EMULATED", &include, "-x", "c++", "-c", "-o"]).arg(object).arg(source);
            command.spawn().expect("g++ builds the emulated driver: install Debian's g++")
        });
        for child in compile.collect::<Vec<_>>() {
            succeeds("c++", &child.wait_with_output().unwrap());
        }
    }
    let part = target.with_extension("part");
    let linked = Command::new("c++").arg("-shared").arg("-o").arg(&part).args(&objects).output().unwrap();
    succeeds("c++ -shared", &linked);
    // AMD's driver, with its compiler in it. There first: the other's date says that both are new.
    std::fs::copy(&part, target.with_file_name("libamdhip64.so")).unwrap();
    std::fs::rename(part, target).unwrap();
}

fn succeeds(what: &str, output: &Output) {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}
