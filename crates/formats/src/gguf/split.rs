//! A model over several GGUF files, as `llama-gguf-split` writes them: the first one describes it, each has
//! some of its tensors.
//!
//! Their names say which part each is, `NAME-00002-of-00003.gguf`, and so do their keys; both must agree, or
//! a part is missing, there twice, or of another model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exo_types::ByteSource;

use super::{Gguf, GgufError};
use crate::model::model_name;
use crate::{MappedFile, OpenError};

/// Far above what tools write: parts of 2 GB of the largest models are some hundred.
const PARTS_MAX: u32 = 2000;

/// One file of a model.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) source: Arc<dyn ByteSource>,
    pub(super) gguf: Gguf,
}

impl Part {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let map_error = |source| OpenError::Io { attempt: "map", path: path.to_owned(), source };
        Self::parse(path, Arc::new(MappedFile::open(path).map_err(map_error)?))
    }

    pub(super) fn parse(path: &Path, source: Arc<dyn ByteSource>) -> Result<Self, OpenError> {
        let at = |source: GgufError| OpenError::Gguf { path: path.to_owned(), source };
        let gguf = Gguf::parse(source.bytes());
        // A file that shrank meanwhile explains whatever else went wrong.
        source.check().map_err(|source| OpenError::Lost { path: path.to_owned(), source })?;
        let gguf = gguf.map_err(at)?;
        Ok(Self { path: path.to_owned(), source, gguf })
    }

    fn number(&self, key: &str) -> Result<Option<u32>, OpenError> {
        self.gguf.metadata.u32(key).map_err(|source| OpenError::Gguf { path: self.path.clone(), source })
    }

    /// How many files the model has, by this one's keys.
    fn count(&self) -> Result<u32, OpenError> {
        Ok(self.number("split.count")?.unwrap_or(1).max(1))
    }

    /// An error about this file.
    fn wrong(&self, reason: String) -> OpenError {
        OpenError::Part { path: self.path.clone(), reason }
    }
}

/// Part and count in a file's name, counted from 1, and what stands before them.
pub fn numbers_of(file_name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, part) = rest.rsplit_once('-')?;
    let number = |t: &str| (t.len() == 5 && t.bytes().all(|b| b.is_ascii_digit())).then(|| t.parse().ok())?;
    Some((base, number(part)?, number(count)?))
}

/// A file's name without `.gguf` and the number of a part.
pub(super) fn name_of_file(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    let stem = match numbers_of(&name) {
        Some((base, ..)) => base,
        None => name.strip_suffix(".gguf").unwrap_or(&name),
    };
    model_name(stem)
}

/// Every part of the model that `first` belongs to, in their order; just `first` where it is whole.
pub(super) fn all_parts(first: Part) -> Result<Vec<Part>, OpenError> {
    let count = first.count()?;
    if count == 1 {
        return Ok(vec![first]);
    }
    if count > PARTS_MAX {
        return Err(
            first.wrong(format!("its key split.count is {count}, at most {PARTS_MAX} parts are opened"))
        );
    }
    let name = first.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let named = numbers_of(&name).filter(|(_, _, named)| *named == count);
    let Some((base, ..)) = named else {
        let expected = format!("NAME-00001-of-{count:05}.gguf");
        return Err(first.wrong(format!(
            "its key split.count says that it is one of {count} files, and its name does not: the others are looked for by {expected}"
        )));
    };
    let mut parts = Vec::new();
    for part in 1..=count {
        let path = first.path.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf"));
        if !path.is_file() {
            return Err(first.wrong(format!("part {part} of {count} is not there: {}", path.display())));
        }
        parts.push(Part::open(&path)?);
    }
    check(&parts, count)?;
    Ok(parts)
}

/// That the parts are those of one model, each of them once.
fn check(parts: &[Part], count: u32) -> Result<(), OpenError> {
    let tensors = parts.first().map(|p| p.number("split.tensors.count")).transpose()?.flatten();
    let mut seen: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut found = 0u64;
    for (index, part) in parts.iter().enumerate() {
        let (expected, stated) = (index as u32, part.number("split.no")?);
        if stated != Some(expected) {
            let stated = stated.map_or_else(|| "none".to_owned(), |n| (n + 1).to_string());
            return Err(part.wrong(format!(
                "it is part {} by its name and {stated} by its key split.no: a part is there twice, or of another model",
                expected + 1
            )));
        }
        if part.count()? != count {
            let its = part.count()?;
            return Err(part.wrong(format!("it is of a model of {its} files, the first part says {count}")));
        }
        let its = part.number("split.tensors.count")?;
        if its != tensors {
            let text = |n: Option<u32>| n.map_or_else(|| "no number".to_owned(), |n| n.to_string());
            return Err(part.wrong(format!(
                "it is of a model of {} tensors, the first part says {}: it is of another model",
                text(its),
                text(tensors)
            )));
        }
        for tensor in &part.gguf.tensors {
            if let Some(before) = seen.insert(&tensor.name, &part.path) {
                let name = super::metadata::short(&tensor.name);
                return Err(
                    part.wrong(format!("it has the tensor `{name}`, and {} has it too", before.display()))
                );
            }
        }
        found += part.gguf.tensors.len() as u64;
    }
    match tensors.map(u64::from).filter(|stated| *stated != found) {
        Some(stated) => Err(parts[0].wrong(format!(
            "its key split.tensors.count says {stated} tensors, the {count} parts have {found}: one of them is of another model"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_as_its_file_without_the_number_of_the_part() {
        assert_eq!(name_of_file(Path::new("/a/tiny-llama-Q8_0.gguf")), "tiny-llama-Q8_0");
        assert_eq!(name_of_file(Path::new("/a/big-Q8_0-00001-of-00003.gguf")), "big-Q8_0");
    }

    #[test]
    fn parts_are_known_by_their_names() {
        assert_eq!(numbers_of("m-Q8_0-00002-of-00003.gguf"), Some(("m-Q8_0", 2, 3)));
        for other in [
            "m.gguf",
            "m-2-of-3.gguf",
            "m-00002-of-00003.bin",
            "00001-of-00002.gguf",
            "m-0000x-of-00003.gguf",
        ] {
            assert_eq!(numbers_of(other), None, "{other}");
        }
    }
}
