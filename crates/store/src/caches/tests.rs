use super::*;

const HELLO: &str = "GGUFhello";

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn sha(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

fn layer(kind: &str, digest: &str) -> String {
    format!(r#"{{"layers":[{{"mediaType":"{kind}","digest":"sha256:{digest}"}}]}}"#)
}

/// The caches as they look on a real disk, with the leftovers they have.
fn fixture(home: &Path, hub: &Path, ollama: &Path) {
    let qwen = hub.join("models--Qwen--Qwen3-0.6B");
    put(&qwen.join("refs/main"), "bbb\n");
    for revision in ["aaa", "bbb"] {
        put(&qwen.join("snapshots").join(revision).join("config.json"), "{}");
        put(&qwen.join("snapshots").join(revision).join("model.safetensors"), "");
    }
    put(&hub.join("models--a--b-GGUF/snapshots/ccc/b-Q4_0.gguf"), HELLO);
    put(&hub.join("models--no--snapshot/refs/main"), "ddd");
    put(&hub.join("datasets--x--y/snapshots/eee/model.safetensors"), "");
    let (model, tensor) = ("application/vnd.ollama.image.model", "application/vnd.ollama.image.tensor");
    let registry = ollama.join("manifests/registry.ollama.ai");
    put(&registry.join("library/llama3.2/1b"), &layer(model, &sha(HELLO)));
    put(&registry.join("someone/model/latest"), &layer(model, &sha(HELLO)));
    put(&registry.join("library/gone/latest"), &layer(model, &"f".repeat(64)));
    put(&registry.join("library/evil/latest"), &layer(model, "../../x"));
    put(&registry.join("library/bad/latest"), "{");
    put(&registry.join("library/tensors/latest"), &layer(tensor, &"a".repeat(64)));
    put(&ollama.join("manifest-v2/ollama.com/library/qwen3/8b"), &layer(model, &sha(HELLO)));
    put(&ollama.join("blobs").join(format!("sha256-{}", sha(HELLO))), HELLO);
    put(&home.join(".lmstudio/models/pub/repo/m-Q8_0.gguf"), HELLO);
    put(&home.join(".lmstudio/models/pub/repo/mmproj-F16.gguf"), HELLO);
    put(&home.join(".cache/llama.cpp/org_repo_x.gguf"), HELLO);
    put(&home.join(".cache/llama.cpp/y.gguf"), "not a model");
    put(&home.join(".local/share/Jan/data/llamacpp/models/org/z/model.gguf"), HELLO);
    let docker = home.join(".docker/models");
    let id = "d".repeat(64);
    put(
        &docker.join("models.json"),
        &format!(r#"{{"models":[{{"id":"sha256:{id}","tags":["ai/smol:latest"],"files":[]}}]}}"#),
    );
    put(&docker.join("manifests/sha256").join(&id), &layer("application/vnd.docker.ai.gguf.v3", &sha(HELLO)));
    put(&docker.join("blobs/sha256").join(sha(HELLO)), HELLO);
}

fn check(home: &Path, env: &dyn Fn(&str) -> Option<String>) -> String {
    let lines = local_caches(home, env).into_iter().filter(|m| !m.path.starts_with("/usr")).map(|m| {
        let state = m
            .problem
            .map(|p| p.replace(&home.display().to_string(), "~"))
            .unwrap_or_else(|| format!("{} bytes", m.bytes));
        format!("{} {}: {state}\n", m.cache, m.name)
    });
    lines.collect()
}

#[test]
fn every_program_is_found_and_what_cannot_be_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fixture(&home, &home.join(".cache/huggingface/hub"), &home.join(".ollama/models"));
    let f = "f".repeat(64);
    let expected = format!(
        "huggingface Qwen/Qwen3-0.6B: 0 bytes\nhuggingface a/b-GGUF/b-Q4_0.gguf: 9 bytes\ndocker ai/smol:latest: 9 bytes\n\
         ollama bad:latest: its manifest cannot be read\nollama evil:latest: its manifest names no GGUF file\n\
         ollama gone:latest: its manifest names ~/.ollama/models/blobs/sha256-{f}, which is not there\n\
         ollama llama3.2:1b: 9 bytes\njan org/z: 9 bytes\nllama.cpp org_repo_x.gguf: 9 bytes\nlmstudio pub/repo/m-Q8_0.gguf: 9 bytes\n\
         ollama qwen3:8b: 9 bytes\nollama someone/model:latest: 9 bytes\n\
         ollama tensors:latest: Ollama keeps it as 1 blobs of a tensor each, a private layout of its own engine; take the same model as \
         GGUF, as in `exo pull hf.co/ORG/REPO`\n\
         llama.cpp y.gguf: it does not start with the letters GGUF\n"
    );
    assert_eq!(check(&home, &|_| None), expected);
    assert_eq!(check(Path::new("/nowhere"), &|_| None), "");
}

#[test]
fn configured_places_count_instead_of_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let (home, elsewhere) = (folder.path().join("home"), folder.path().join("elsewhere"));
    fixture(&home, &elsewhere.join("hf/hub"), &elsewhere.join("o"));
    let env = |name: &str| match name {
        "HF_HOME" => Some(elsewhere.join("hf").display().to_string()),
        "OLLAMA_MODELS" => Some(elsewhere.join("o").display().to_string()),
        "LLAMA_CACHE" | "MODELS_PATH" | "JAN_DATA_FOLDER" => Some("/nowhere".to_owned()),
        _ => None,
    };
    let found = check(&home, &env);
    assert!(found.contains("huggingface Qwen/Qwen3-0.6B") && found.contains("ollama llama3.2:1b"), "{found}");
    assert!(!found.contains("llama.cpp") && !found.contains("docker") && !found.contains("jan"), "{found}");
    put(&home.join(".lmstudio-home-pointer"), &elsewhere.join("lm").display().to_string());
    assert!(!check(&home, &env).contains("lmstudio"));
}

#[test]
fn a_reference_means_what_is_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fixture(&home, &home.join(".cache/huggingface/hub"), &home.join(".ollama/models"));
    let found: Vec<_> =
        local_caches(&home, &|_| None).into_iter().filter(|m| !m.path.starts_with("/usr")).collect();
    let find = |name: &str| find_cached(&found, name).unwrap().map(|m| format!("{} {}", m.cache, m.name));
    for (name, model) in [
        ("llama3.2:1b", "ollama llama3.2:1b"),
        ("a/b-GGUF", "huggingface a/b-GGUF/b-Q4_0.gguf"),
        ("a/b-gguf:q4_0", "huggingface a/b-GGUF/b-Q4_0.gguf"),
        ("Qwen/Qwen3-0.6B", "huggingface Qwen/Qwen3-0.6B"),
        ("someone/model", "ollama someone/model:latest"),
        ("tensors:latest", "ollama tensors:latest"),
    ] {
        assert_eq!(find(name).as_deref(), Some(model), "{name}");
    }
    for name in ["a/b-GGUF:Q8_0", "a/b-GGUF:Q4", "llama3.2", "demo", "a"] {
        assert_eq!(find(name), None, "{name}");
    }
}

#[test]
fn a_file_that_is_not_what_its_program_says_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fixture(&home, &home.join("hub"), &home.join(".ollama/models"));
    let model = local_caches(&home, &|_| None).into_iter().find(|m| m.name == "qwen3:8b").unwrap();
    let mut done = 0;
    model.verify(&mut |bytes| done = bytes).unwrap();
    assert_eq!(done, 9);
    put(&model.path, "GGUFother");
    let text = model.verify(&mut |_| {}).unwrap_err().to_string();
    assert!(text.contains(&sha(HELLO)) && text.contains("let ollama fetch it again"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_link_of_the_cache_keeps_its_name_has_its_digest_and_says_when_it_dangles() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join(".cache/huggingface/hub/models--a--b");
    put(&repository.join("blobs").join(sha(HELLO)), HELLO);
    let snapshot = repository.join("snapshots/ccc");
    fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{}", sha(HELLO)), snapshot.join("m.gguf")).unwrap();
    std::os::unix::fs::symlink("../../blobs/none", snapshot.join("n.gguf")).unwrap();
    let found = local_caches(folder.path(), &|name| (name == "OLLAMA_MODELS").then(|| "/nowhere".to_owned()));
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].name.as_str(), found[0].sha256.as_deref()),
        ("a/b/m.gguf", Some(sha(HELLO).as_str()))
    );
    found[0].verify(&mut |_| {}).unwrap();
    assert_eq!(found[1].problem.as_deref(), Some("its link leads to a file that is not there"));
}

#[cfg(unix)]
#[test]
fn every_shard_and_every_part_is_compared_with_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join(".cache/huggingface/hub/models--a--b");
    let snapshot = repository.join("snapshots/ccc");
    put(&snapshot.join("config.json"), "{}");
    for (name, text) in [
        ("model-00001-of-00002.safetensors", "one"),
        ("model-00002-of-00002.safetensors", "two"),
        ("m-00001-of-00002.gguf", "GGUF1"),
        ("m-00002-of-00002.gguf", "GGUF2"),
    ] {
        put(&repository.join("blobs").join(sha(text)), text);
        std::os::unix::fs::symlink(format!("../../blobs/{}", sha(text)), snapshot.join(name)).unwrap();
    }
    let found =
        || local_caches(folder.path(), &|name| (name == "OLLAMA_MODELS").then(|| "/nowhere".to_owned()));
    assert_eq!(found().len(), 2);
    for model in found() {
        let mut done = 0;
        model.verify(&mut |bytes| done = bytes).unwrap();
        assert_eq!(done, model.bytes, "{}", model.name);
    }
    for rotten in ["two", "GGUF2"] {
        put(&repository.join("blobs").join(sha(rotten)), "GGUFx");
    }
    for model in found() {
        let text = model.verify(&mut |_| {}).unwrap_err().to_string();
        assert!(text.contains("00002-of-00002") && text.contains("it is damaged"), "{text}");
    }
}

#[test]
fn a_file_that_grows_while_it_is_read_is_left_to_its_program() {
    let folder = tempfile::tempdir().unwrap();
    fixture(folder.path(), &folder.path().join("hub"), &folder.path().join(".ollama/models"));
    let model = local_caches(folder.path(), &|_| None).into_iter().find(|m| m.name == "qwen3:8b").unwrap();
    let grow = |_| {
        let mut file = fs::OpenOptions::new().append(true).open(&model.path).unwrap();
        std::io::Write::write_all(&mut file, b"more").unwrap();
    };
    let error = model.verify(&mut { grow }).unwrap_err();
    assert!(matches!(&error, CacheError::Changing { path } if *path == model.path), "{error}");
}

#[cfg(unix)]
#[test]
fn a_lock_of_another_program_keeps_nobody_from_reading() {
    let folder = tempfile::tempdir().unwrap();
    fixture(folder.path(), &folder.path().join("hub"), &folder.path().join(".ollama/models"));
    let model = local_caches(folder.path(), &|_| None).into_iter().find(|m| m.name == "qwen3:8b").unwrap();
    let other = fs::File::open(&model.path).unwrap();
    other.lock().unwrap();
    model.verify(&mut |_| {}).unwrap();
}

#[cfg(unix)]
#[test]
fn what_cannot_be_looked_into_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let several = home.join(".cache/huggingface/hub/models--a--several/snapshots");
    ["aaa", "bbb"].iter().for_each(|commit| put(&several.join(commit).join("m.gguf"), HELLO));
    put(&home.join(".docker/models/models.json"), "{");
    // A link to itself: what its owner may not look into is no different, but for root.
    for name in [".cache/llama.cpp", ".ollama/models/manifests/host"] {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(home.join(name), home.join(name)).unwrap();
    }
    let text = check(home, &|_| None);
    for (start, reason) in [
        ("huggingface a/several: ", "it has 2 snapshots, and no refs/main names one of them"),
        ("docker (all): ", "it is damaged: "),
        ("llama.cpp (all): ", "it cannot be looked into: "),
        ("ollama host: ", "it cannot be looked into: "),
    ] {
        let line = text.lines().find(|line| line.starts_with(start));
        assert!(line.is_some_and(|line| line.contains(reason)), "{start}{reason}: {text}");
    }
}

#[test]
fn folders_that_the_settings_of_a_program_name_are_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let (home, moved) = (folder.path().join("home"), folder.path().join("moved"));
    let settings = |key: &str, to: &Path| serde_json::json!({ key: to }).to_string();
    put(&home.join(".lmstudio/settings.json"), &settings("downloadsFolder", &moved.join("lm")));
    put(&moved.join("lm/pub/repo/m.gguf"), HELLO);
    put(&home.join(".lmstudio/models/pub/repo/before.gguf"), HELLO);
    put(&home.join(".local/share/Jan/settings.json"), &settings("data_folder", &moved.join("jan")));
    put(&moved.join("jan/llamacpp/models/org/z/model.gguf"), HELLO);
    let expected =
        "jan org/z: 9 bytes\nlmstudio pub/repo/before.gguf: 9 bytes\nlmstudio pub/repo/m.gguf: 9 bytes\n";
    assert_eq!(check(&home, &|_| None), expected);
    put(&home.join(".lmstudio/settings.json"), &settings("downloadsFolder", Path::new("relative")));
    assert!(!check(&home, &|_| None).contains("pub/repo/m.gguf"), "a relative one means nothing");
}
