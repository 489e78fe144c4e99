//! Models of a registry, against the mock one: the token dance, blobs by their digests, and what is refused.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::PathBuf;

use exo_hub::{Cancel, Client, Fetched, HubError, PullOptions, Settings, fetch, resolve};
use exo_mock_hub::{Faults, Host, Layer, MockHub};

const CHUNK: usize = 4 << 20;
const MODEL: &str = "application/vnd.ollama.image.model";

struct Bench {
    hub: MockHub,
    folder: tempfile::TempDir,
}

fn weights(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 / 7) as u8).collect()
}

impl Bench {
    /// `tiny:1b` as Ollama's registry has its models.
    fn new(len: usize) -> Self {
        let hub = MockHub::start().unwrap();
        hub.put_layers(
            "library/tiny",
            "1b",
            &[
                Layer::new(MODEL, &weights(len)),
                Layer::new("application/vnd.ollama.image.template", b"{{ .Prompt }}"),
                Layer::new("application/vnd.ollama.image.license", b"  Apache License\nVersion 2.0"),
            ],
        );
        Self { hub, folder: tempfile::tempdir().unwrap() }
    }

    fn client(&self) -> Client {
        let mut settings = Settings::of("https://hub.invalid").unwrap();
        settings.ollama_registry = self.hub.endpoint().parse().unwrap();
        Client::new(settings)
    }

    fn options(&self) -> PullOptions {
        PullOptions::new(self.folder.path().to_owned())
    }

    fn pull(&self, reference: &str) -> Result<Fetched, HubError> {
        let (client, cancel) = (self.client(), Cancel::default());
        let plan = resolve(&client, &reference.parse().unwrap(), None, &cancel)?;
        fetch(&client, &plan, &self.options(), &cancel, &mut |_| {})
    }

    fn refused(&self, reference: &str) -> String {
        let error = self.pull(reference).expect_err("it is refused");
        let cause = std::error::Error::source(&error).map(|e| format!(": {e}")).unwrap_or_default();
        format!("{error}{cause}")
    }

    fn oci(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.hub.endpoint().trim_start_matches("http://"))
    }
}

#[test]
fn a_model_of_ollamas_registry_comes_by_its_digest_with_its_licence() {
    let bench = Bench::new(3 * CHUNK + 5);
    let fetched = bench.pull("tiny:1b").unwrap();
    assert_eq!(fetched.path.file_name().unwrap(), "tiny-1b.gguf");
    assert_eq!(std::fs::read(&fetched.path).unwrap(), weights(3 * CHUNK + 5));
    assert!(fetched.origin.is_verified());
    assert_eq!(
        (fetched.origin.reference.as_str(), fetched.origin.licence.label()),
        ("tiny:1b", "apache-2.0")
    );
    let licence: PathBuf = fetched.path.with_file_name("LICENSE");
    assert!(std::fs::read_to_string(licence).unwrap().contains("Version 2.0"));
    let sent = bench.hub.sent_bytes();
    assert!(bench.pull("ollama://library/tiny:1b").unwrap().was_here);
    let here = bench.options().on_disk(&"tiny:1b".parse().unwrap()).unwrap();
    assert_eq!(here.path, fetched.path, "without a line it is found by its name");
    assert!(bench.options().on_disk(&"tiny:2b".parse().unwrap()).is_none());
    // The licence is read again; of the weights nothing.
    assert!(bench.hub.sent_bytes() - sent < 100);
    assert_eq!(
        std::fs::read(bench.pull(&bench.oci("library/tiny:1b")).unwrap().path).unwrap().len(),
        3 * CHUNK + 5
    );
}

#[test]
fn a_token_is_got_where_the_registry_says_and_again_when_it_has_ended_and_goes_nowhere_else() {
    let bench = Bench::new(6 * CHUNK);
    bench.hub.set_faults(Faults {
        registry_token_uses: Some(2),
        signature_uses: Some(1),
        ..Faults::default()
    });
    let fetched = bench.pull("tiny:1b").unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), weights(6 * CHUNK));
    let seen = bench.hub.seen();
    let tokens = seen.iter().filter(|s| s.target.starts_with("/token?")).count();
    assert!(tokens > 1, "{tokens} tokens");
    assert!(seen.iter().all(|s| s.host == Host::Hub || s.authorization.is_none()));
    let asked = seen.iter().find(|s| s.target.starts_with("/token?")).unwrap();
    assert!(asked.target.contains("scope=repository%3Alibrary%2Ftiny%3Apull"), "{}", asked.target);
    assert!(asked.authorization.is_none());
}

#[test]
fn bytes_that_are_not_those_of_the_digest_are_deleted() {
    let bench = Bench::new(CHUNK + 7);
    bench.hub.set_faults(Faults { wrong_byte_at: Some(CHUNK as u64 + 1), ..Faults::default() });
    let text = bench.refused("tiny:1b");
    assert!(text.contains("its SHA-256 is") && text.contains("it was deleted"), "{text}");
}

#[test]
fn a_manifest_that_is_named_by_its_digest_must_have_it() {
    let bench = Bench::new(10);
    let manifest = |bytes: &[u8]| {
        let digest = exo_mock_hub::sha256(bytes);
        format!(
            r#"{{"layers":[{{"mediaType":"{MODEL}","digest":"sha256:{digest}","size":{}}}]}}"#,
            bytes.len()
        )
    };
    let (right, wrong) = (manifest(&weights(10)), manifest(b"another model"));
    let digest = exo_mock_hub::sha256(right.as_bytes());
    let name = bench.oci(&format!("library/tiny@sha256:{digest}"));
    bench.hub.put_manifest("library/tiny", &format!("sha256:{digest}"), wrong.as_bytes());
    let text = bench.refused(&name);
    let found = exo_mock_hub::sha256(wrong.as_bytes());
    assert!(text.contains(&format!("its SHA-256 is {found}, and {digest} was asked for")), "{text}");
    assert_eq!(bench.hub.sent_bytes(), 0);
    bench.hub.put_manifest("library/tiny", &format!("sha256:{digest}"), right.as_bytes());
    assert_eq!(std::fs::read(bench.pull(&name).unwrap().path).unwrap(), weights(10));
}

#[test]
fn what_a_registry_cannot_give_is_said_before_a_byte_is_fetched() {
    let bench = Bench::new(10);
    assert!(bench.refused("gone:1b").contains("has no gone:1b"), "{}", bench.refused("gone:1b"));
    let tensor = [Layer::new("application/vnd.ollama.image.tensor", b"x")];
    bench.hub.put_layers("library/tensors", "1b", &tensor);
    assert!(bench.refused("tensors:1b").contains("one layer for each tensor"));
    bench.hub.put_layers("library/text", "1b", &[Layer::new("text/plain", b"x")]);
    assert!(bench.refused("text:1b").contains("no layer of it is a GGUF file"));
    let titled = |title: &str, digit: &str| {
        let digest = digit.repeat(64);
        format!(
            r#"{{"mediaType":"{MODEL}","digest":"sha256:{digest}","size":4,"annotations":{{"org.opencontainers.image.title":"{title}"}}}}"#
        )
    };
    let twice = format!(r#"{{"layers":[{},{}]}}"#, titled("a/x.gguf", "a"), titled("b/X.gguf", "b"));
    bench.hub.put_manifest("library/twice", "1b", twice.as_bytes());
    assert!(bench.refused("twice:1b").contains("two of its layers have the same name"));
    bench.hub.put_manifest("library/html", "1b", b"<html>");
    assert!(bench.refused("html:1b").contains("not JSON"));
    bench.hub.put_manifest(
        "library/lost",
        "1b",
        format!(r#"{{"layers":[{{"mediaType":"{MODEL}","digest":"sha256:{}","size":4}}]}}"#, "a".repeat(64))
            .as_bytes(),
    );
    assert!(
        bench.refused("lost:1b").contains("answered 404 to the attempt to fetch"),
        "{}",
        bench.refused("lost:1b")
    );
    // A challenge that leads in circles, or nowhere.
    let nowhere = Some("ftp://x/token".to_owned());
    bench.hub.set_faults(Faults {
        registry_token_uses: Some(0),
        registry_realm: nowhere,
        ..Faults::default()
    });
    assert!(
        bench.refused("tiny:1b").contains("only http and https are followed"),
        "{}",
        bench.refused("tiny:1b")
    );
    bench.hub.set_faults(Faults { registry_token_uses: Some(0), ..Faults::default() });
    assert!(bench.refused("tiny:1b").contains("without signing in"), "{}", bench.refused("tiny:1b"));
    assert_eq!(bench.hub.sent_bytes(), 0);
}
