//! Which files of a repository are the model: a quantisation of a GGUF repository, or the shards of a
//! safetensors one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::errors::quoted;
use crate::problems::{AnswerProblem, ChoiceProblem, INDEX_SHARDS_MAX};
use crate::{HubError, RepoFile, Snapshot, names};

/// Types of weights that exo computes with, as the names of GGUF files have them. Longer ones stand before
/// what they contain.
const LABELS: &str = "\
    Q2_K_S Q2_K_L Q2_K_XL Q2_K Q3_K_XL Q3_K_S Q3_K_M Q3_K_L Q3_K Q4_K_XL Q4_K_S Q4_K_M Q4_K_L Q4_K \
    Q5_K_XL Q5_K_S Q5_K_M Q5_K_L Q5_K Q6_K_XL Q6_K_L Q6_K Q8_K_XL Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 BF16 F16 \
    FP16 F32 FP32";
/// Types that are common and that exo does not compute with yet.
const OTHER_LABELS: &str = "\
    IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_XS IQ4_NL MXFP4_MOE MXFP4 \
    TQ1_0 TQ2_0 NVFP4";
/// Files beside the weights of a safetensors model. The last two are of Sentence Transformers: how rows
/// become a vector.
const COMPANIONS: &str = "\
    config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json \
    added_tokens.json vocab.json merges.txt chat_template.jinja modules.json 1_Pooling/config.json";
const INDEX: &str = "model.safetensors.index.json";
/// Memory a model takes beyond its weights, as a part of them and at least: keys and values, buffers.
const EXTRA_PART: u64 = 10;
const EXTRA_BYTES_MIN: u64 = 256 << 20;

/// One model that a repository has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The quantisation, for example `Q4_K_M`, or `safetensors`.
    pub label: String,
    /// Its files, the one to open first.
    pub files: Vec<RepoFile>,
    /// Whether exo computes with this type of weights.
    pub is_supported: bool,
    /// What is wrong with its files, if something is: a part that is missing.
    pub problem: Option<String>,
}

impl Variant {
    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// Memory to run it: weights and a tenth more.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes().saturating_add((self.bytes() / EXTRA_PART).max(EXTRA_BYTES_MIN))
    }
}

/// What was chosen, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenVariant {
    /// The model.
    pub variant: Variant,
    /// Why this one, in words.
    pub reason: String,
}

/// What a model should fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes that models may have.
    pub bytes: u64,
    /// Whose: "this machine", "the 3 machines of the cluster".
    pub of: String,
}

/// The models of a repository, largest first. Projectors, importance matrices and adapters are no models.
pub fn variants(snapshot: &Snapshot) -> Vec<Variant> {
    let mut groups: BTreeMap<(String, String), Vec<&RepoFile>> = BTreeMap::new();
    for file in snapshot.files.iter().filter(|f| is_model_gguf(&f.path)) {
        let (stem, _) = split_stem(&file.path);
        groups.entry((label_of(&stem), stem)).or_default().push(file);
    }
    let mut variants: Vec<Variant> =
        groups.into_iter().map(|((label, stem), files)| gguf_variant(label, &stem, files)).collect();
    variants.extend(safetensors_variant(snapshot));
    variants.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then(a.label.cmp(&b.label)));
    variants
}

/// Those of them that are worth choosing from, largest first: whole, of types that exo computes with, and
/// beyond eight bits and a half only where there is nothing smaller. More only costs: whoever wants 16 bits
/// names them.
pub fn usable(all: &[Variant]) -> Vec<&Variant> {
    let is_wide = |v: &Variant| ["F32", "FP32", "F16", "FP16", "BF16"].contains(&v.label.as_str());
    let usable = || all.iter().filter(|v| v.is_supported && v.problem.is_none());
    let has_narrow = usable().any(|v| !is_wide(v));
    usable().filter(|v| !has_narrow || !is_wide(v)).collect()
}

/// The model that is meant: by its quantisation or file, or without either the largest that fits `memory`.
pub(crate) fn choose(
    snapshot: &Snapshot,
    quantisation: Option<&str>,
    file: Option<&str>,
    memory: Option<&Memory>,
) -> Result<ChosenVariant, HubError> {
    let all = variants(snapshot);
    let none = |reason: String| HubError::NoModel { repo: snapshot.repo.clone(), reason };
    if all.is_empty() {
        let has = match snapshot.left_out {
            0 => "it has neither GGUF files nor safetensors with a config.json".to_owned(),
            n => format!(
                "it has neither GGUF files nor safetensors with a config.json; {n} files of other kinds, which are never fetched"
            ),
        };
        return Err(none(has));
    }
    let choice = match (file, quantisation) {
        (Some(file), _) => by_file(&all, file)
            .ok_or_else(|| none(format!("no model in it has the file `{}`", quoted(file))))?,
        (None, Some(wanted)) => by_label(&all, wanted).map_err(|e| none(e.to_string()))?,
        (None, None) => by_memory(&all, memory).map_err(|e| none(e.to_string()))?,
    };
    match &choice.variant.problem {
        Some(problem) => Err(none(problem.clone())),
        None => Ok(choice),
    }
}

fn by_file(all: &[Variant], file: &str) -> Option<ChosenVariant> {
    let variant = all.iter().find(|v| v.files.iter().any(|f| f.path == file))?;
    Some(ChosenVariant { variant: variant.clone(), reason: "the file that the address names".to_owned() })
}

fn by_label(all: &[Variant], wanted: &str) -> Result<ChosenVariant, ChoiceProblem> {
    let exact: Vec<&Variant> = all.iter().filter(|v| v.label.eq_ignore_ascii_case(wanted)).collect();
    let lower = wanted.to_ascii_lowercase();
    let named = || {
        all.iter().filter(|v| v.files.iter().any(|f| f.path.to_ascii_lowercase().contains(&lower))).collect()
    };
    let found: Vec<&Variant> = if exact.is_empty() { named() } else { exact };
    match found.as_slice() {
        [only] => Ok(ChosenVariant { variant: (*only).clone(), reason: "as asked for".to_owned() }),
        [] => Err(ChoiceProblem::NoSuchLabel { wanted: quoted(wanted), labels: labels(all) }),
        several => {
            let files: Vec<String> = several.iter().map(|v| quoted(&v.files[0].path)).collect();
            Err(ChoiceProblem::Ambiguous { wanted: quoted(wanted), files: files.join(", ") })
        }
    }
}

/// The largest that fits; the smallest if none does.
fn by_memory(all: &[Variant], memory: Option<&Memory>) -> Result<ChosenVariant, ChoiceProblem> {
    let candidates = usable(all);
    let Some(smallest) = candidates.last() else {
        let problem = all.iter().find_map(|v| v.problem.clone());
        return Err(match problem {
            Some(problem) => ChoiceProblem::Variant(problem),
            None => ChoiceProblem::NoKernels { labels: labels(all) },
        });
    };
    let usable = all.iter().filter(|v| v.is_supported && v.problem.is_none());
    if let [only] = usable.collect::<Vec<_>>().as_slice() {
        return Ok(ChosenVariant { variant: (*only).clone(), reason: "the only one there is".to_owned() });
    }
    let Some(Memory { bytes, of }) = memory else {
        return Ok(ChosenVariant {
            variant: (*smallest).clone(),
            reason: "the smallest, because this machine's memory is not known".to_owned(),
        });
    };
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let fitting = candidates.iter().find(|v| v.memory_bytes() <= *bytes);
    let chosen = fitting.unwrap_or(smallest);
    let (needed, there) = (gib(chosen.memory_bytes()), gib(*bytes));
    let reason = match fitting {
        Some(_) => {
            format!("the largest quantisation that fits the memory of {of}: about {needed} of {there}")
        }
        None => format!(
            "the smallest there is: it takes about {needed}, {of} has {there}, so it needs more machines"
        ),
    };
    Ok(ChosenVariant { variant: (*chosen).clone(), reason })
}

fn labels(all: &[Variant]) -> String {
    let mut seen = BTreeSet::new();
    let labels: Vec<String> =
        all.iter().filter(|v| seen.insert(v.label.clone())).map(|v| quoted(&v.label)).collect();
    labels.join(", ")
}

fn is_model_gguf(path: &str) -> bool {
    let name = names::file_name(path).to_ascii_lowercase();
    let is_part = ["mmproj", "imatrix"].iter().any(|p| name.contains(p)) || name.starts_with("lora");
    name.ends_with(".gguf") && !is_part
}

/// A path without `.gguf` and the number of its part, and that number: `x-00001-of-00003.gguf`.
fn split_stem(path: &str) -> (String, Option<(u32, u32)>) {
    let stem = path.get(..path.len().saturating_sub(5)).unwrap_or(path);
    let number = |t: &str| {
        (t.len() == 5 && t.bytes().all(|b| b.is_ascii_digit())).then(|| t.parse::<u32>().ok()).flatten()
    };
    let split = stem.rsplit_once("-of-").and_then(|(rest, count)| {
        let (base, part) = rest.rsplit_once('-')?;
        Some((base.to_owned(), (number(part)?, number(count)?)))
    });
    split.map_or_else(|| (stem.to_owned(), None), |(base, numbers)| (base, Some(numbers)))
}

/// The quantisation in a name: the last label that stands between separators.
fn label_of(stem: &str) -> String {
    let upper = stem.to_ascii_uppercase();
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    let found = OTHER_LABELS.split(' ').chain(LABELS.split(' ')).filter_map(|label| {
        let at = upper.rfind(label)?;
        let before = upper[..at].chars().next_back();
        let after = upper[at + label.len()..].chars().next();
        (is_edge(before) && is_edge(after)).then_some((at, label.len(), label))
    });
    let best = found.max_by_key(|(at, len, _)| (*at, *len));
    best.map_or_else(|| names::file_name(stem).to_owned(), |(_, _, label)| label.to_owned())
}

fn gguf_variant(label: String, stem: &str, files: Vec<&RepoFile>) -> Variant {
    let is_supported = !OTHER_LABELS.split(' ').any(|other| other == label);
    let problem = parts_problem(stem, &files);
    Variant { label, files: files.into_iter().cloned().collect(), is_supported, problem }
}

/// What is wrong with the parts of a split file. They are sorted by name, so by number.
fn parts_problem(stem: &str, files: &[&RepoFile]) -> Option<String> {
    let numbers: Vec<Option<(u32, u32)>> = files.iter().map(|f| split_stem(&f.path).1).collect();
    let name = quoted(stem);
    match numbers.as_slice() {
        [None] => None,
        all if all.iter().any(Option::is_none) => Some(format!("`{name}` is there both whole and in parts")),
        all => {
            let all: Vec<(u32, u32)> = all.iter().flatten().copied().collect();
            let count = all.first().map_or(0, |(_, count)| *count);
            if all.iter().any(|(_, c)| *c != count) {
                return Some(format!("the parts of `{name}` do not agree how many there are"));
            }
            if let Some((part, _)) = all.iter().find(|(part, _)| !(1..=count).contains(part)) {
                return Some(format!("part {part} of `{name}` is there, and it has {count} parts"));
            }
            let missing = (1..=count).find(|n| !all.iter().any(|(part, _)| part == n));
            missing.map(|n| format!("part {n} of {count} of `{name}` is not there"))
        }
    }
}

fn safetensors_variant(snapshot: &Snapshot) -> Option<Variant> {
    let named = |path: &str| snapshot.files.iter().find(|f| f.path == path).cloned();
    named("config.json")?;
    let mut weights: Vec<RepoFile> =
        snapshot.files.iter().filter(|f| is_model_safetensors(&f.path)).cloned().collect();
    if weights.is_empty() {
        return None;
    }
    weights.extend(named(INDEX));
    weights.extend(COMPANIONS.split(' ').filter_map(named));
    Some(Variant { label: "safetensors".to_owned(), files: weights, is_supported: true, problem: None })
}

/// `model.safetensors` and `model-00001-of-00002.safetensors`; not `consolidated.safetensors`, which is the
/// same weights once more.
fn is_model_safetensors(path: &str) -> bool {
    path.starts_with("model") && path.ends_with(".safetensors") && !path.contains('/')
}

/// The shards that an index names.
pub(crate) fn shards_of_index(bytes: &[u8]) -> Result<BTreeSet<String>, AnswerProblem> {
    let value: Value = serde_json::from_slice(bytes).map_err(AnswerProblem::Json)?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or(AnswerProblem::NoKey("weight_map"))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().ok_or_else(|| AnswerProblem::NoShard(quoted(tensor)))?;
        if names::refusal(shard).is_some() || shard.contains('/') || !shard.ends_with(".safetensors") {
            return Err(AnswerProblem::ShardName { tensor: quoted(tensor), shard: quoted(shard) });
        }
        if shards.insert(shard.to_owned()) && shards.len() > INDEX_SHARDS_MAX {
            return Err(AnswerProblem::TooManyShards);
        }
    }
    if shards.is_empty() {
        return Err(AnswerProblem::NoShards);
    }
    Ok(shards)
}

/// Leaves of a safetensors model the shards that its index names; an error says which is not there.
pub(crate) fn keep_shards(variant: &mut Variant, index: &[u8]) -> Result<(), AnswerProblem> {
    let shards = shards_of_index(index)?;
    if let Some(missing) = shards.iter().find(|s| !variant.files.iter().any(|f| f.path == **s)) {
        return Err(AnswerProblem::ShardMissing(quoted(missing)));
    }
    variant.files.retain(|f| !f.path.ends_with(".safetensors") || shards.contains(&f.path));
    Ok(())
}

/// The path of the index, if the model has one.
pub(crate) fn index_of(variant: &Variant) -> Option<&RepoFile> {
    variant.files.iter().find(|f| f.path == INDEX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Licence;

    fn snapshot(files: &[(&str, u64)]) -> Snapshot {
        let files = files
            .iter()
            .map(|(path, size)| RepoFile {
                path: (*path).to_owned(),
                size: *size,
                sha256: None,
                git_id: None,
            })
            .collect();
        Snapshot {
            repo: "a/b".to_owned(),
            commit: String::new(),
            files,
            left_out: 0,
            licence: Licence::default(),
            is_gated: false,
            moved_to: None,
        }
    }

    const G: u64 = 1 << 30;

    fn check(files: &[(&str, u64)], wanted: Option<&str>, memory: Option<u64>) -> String {
        let memory = memory.map(|bytes| Memory { bytes, of: "this machine".to_owned() });
        match choose(&snapshot(files), wanted, None, memory.as_ref()) {
            Ok(c) => format!("{} x{}: {}", c.variant.label, c.variant.files.len(), c.reason),
            Err(error) => error.to_string(),
        }
    }

    const QUANTS: &[(&str, u64)] = &[
        ("m-BF16.gguf", 16 * G),
        ("m-IQ4_XS.gguf", 4 * G),
        ("m-Q2_K.gguf", 3 * G),
        ("m-Q4_K_M.gguf", 5 * G),
        ("m-Q8_0.gguf", 8 * G),
        ("mmproj-F16.gguf", G),
    ];

    #[test]
    fn the_largest_quantisation_that_fits_is_taken_and_said() {
        assert_eq!(
            check(QUANTS, None, Some(64 * G)),
            "Q8_0 x1: the largest quantisation that fits the memory of this machine: about 8.8 GiB of 64.0 GiB"
        );
        assert!(check(QUANTS, None, Some(8 * G)).starts_with("Q4_K_M x1: the largest"));
        assert!(
            check(QUANTS, None, Some(G)).starts_with(
                "Q2_K x1: the smallest there is: it takes about 3.3 GiB, this machine has 1.0 GiB"
            )
        );
        assert!(check(QUANTS, None, None).starts_with("Q2_K x1: the smallest"));
        assert_eq!(check(QUANTS, Some("q4_k_m"), Some(G)), "Q4_K_M x1: as asked for");
        assert_eq!(check(QUANTS, Some("bf16"), Some(G)), "BF16 x1: as asked for");
        assert!(check(QUANTS, Some("Q3_K"), None).ends_with("it has BF16, Q8_0, Q4_K_M, IQ4_XS, Q2_K"));
    }

    #[test]
    fn a_split_file_is_one_model_and_a_missing_part_is_named() {
        let split = [("Q8_0/m-Q8_0-00001-of-00002.gguf", G), ("Q8_0/m-Q8_0-00002-of-00002.gguf", G)];
        assert_eq!(check(&split, Some("Q8_0"), None), "Q8_0 x2: as asked for");
        assert_eq!(variants(&snapshot(&split)).len(), 1);
        assert!(
            check(&split[1..], Some("Q8_0"), None).ends_with("part 1 of 2 of `Q8_0/m-Q8_0` is not there")
        );
        let more = [split[0], split[1], ("Q8_0/m-Q8_0-00003-of-00002.gguf", G)];
        assert!(
            check(&more, Some("Q8_0"), None)
                .ends_with("part 3 of `Q8_0/m-Q8_0` is there, and it has 2 parts")
        );
        let doubled = [("m-Q8_0-00001-of-00001.gguf", G), ("m-Q8_0.gguf", G)];
        assert!(check(&doubled, Some("Q8_0"), None).contains("both whole and in parts"));
    }

    #[test]
    fn labels_are_read_between_separators() {
        for (stem, label) in [
            ("Llama-3.2-1B-Instruct-Q4_K_M", "Q4_K_M"),
            ("x.f16", "F16"),
            ("m-UD-Q4_K_XL", "Q4_K_XL"),
            ("m-iq2_xs", "IQ2_XS"),
            ("q8_0-model", "Q8_0"),
            ("model", "model"),
        ] {
            assert_eq!(label_of(stem), label, "{stem}");
        }
    }

    #[test]
    fn safetensors_are_taken_with_what_belongs_to_them_and_nothing_else() {
        let files = [
            ("config.json", 1),
            ("consolidated.safetensors", G),
            ("model-00001-of-00002.safetensors", G),
            ("model-00002-of-00002.safetensors", G),
            (INDEX, 1),
            ("tokenizer.json", 1),
            ("README.md", 1),
            ("onnx/model.json", 1),
            ("modules.json", 1),
            ("1_Pooling/config.json", 1),
        ];
        assert_eq!(check(&files, None, None), "safetensors x7: the only one there is");
        let mut variant = choose(&snapshot(&files), None, None, None).unwrap().variant;
        keep_shards(&mut variant, br#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#).unwrap();
        assert_eq!(variant.files.len(), 6);
        for (index, problem) in [
            (r#"{"weight_map":{"a":"model-3.safetensors"}}"#, "not in the repository"),
            (r#"{"weight_map":{"a":"../x.safetensors"}}"#, "not the name of a shard"),
            (r#"{"weight_map":{"a":"x.bin"}}"#, "not the name of a shard"),
            (r#"{"weight_map":{}}"#, "is empty"),
            ("<html>", "not JSON"),
        ] {
            assert!(
                keep_shards(&mut variant.clone(), index.as_bytes())
                    .unwrap_err()
                    .to_string()
                    .contains(problem),
                "{index}"
            );
        }
        assert!(
            check(&[("pytorch_model.bin", 1)], None, None).contains("neither GGUF files nor safetensors")
        );
    }
}
