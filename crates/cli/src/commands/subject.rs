//! The model of a command that works on files, without a node: a file, a folder, the built-in model, or a
//! model that the data folder knows.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use exo_formats::Model;
use exo_store::Store;

use super::bench::synthetic::Made;

/// A model that can be opened again and again: for `exo bench` opening is part of what is measured.
#[derive(Debug)]
pub enum Subject {
    /// A GGUF file or a Hugging Face folder.
    Path(PathBuf),
    /// The one the binary carries.
    Demo,
    /// Random weights in the shape of a model.
    Made(Made),
}

impl Subject {
    /// What `text` means: a path if there is one, `demo`, or a name that `exo models` shows.
    pub fn find(text: &str, data_dir: &Path) -> anyhow::Result<Self> {
        let path = Path::new(text);
        if path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        if text == "demo" {
            return Ok(Self::Demo);
        }
        if text.contains(std::path::MAIN_SEPARATOR) || text.ends_with(".gguf") {
            bail!("cannot find {text}: no such file or folder");
        }
        if !data_dir.is_dir() {
            bail!("no model `{text}` is known: give a GGUF file, a Hugging Face folder, or `demo`");
        }
        let (store, _) = Store::open(data_dir).context("cannot read the list of models")?;
        let record = store.find(text)?;
        if !record.complete {
            bail!("only part of `{text}` is on this machine, and this needs all of it");
        }
        Ok(Self::Path(record.path))
    }

    /// Reads the headers and maps the rest.
    pub fn open(&self) -> anyhow::Result<Model> {
        match self {
            Self::Path(path) => {
                exo_formats::open(path).with_context(|| format!("cannot open {}", path.display()))
            }
            Self::Made(made) => Ok(made.model()),
            Self::Demo => Ok(exo_formats::open_gguf_bytes("demo", exo_node::DEMO_MODEL.to_vec())?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_needs_no_file_and_opens() {
        let subject = Subject::find("demo", Path::new("/does/not/exist")).unwrap();
        assert!(matches!(subject, Subject::Demo));
        assert!(subject.open().unwrap().config.layers > 0);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let nowhere = Path::new("/does/not/exist");
        let error = Subject::find("llama", nowhere).unwrap_err().to_string();
        assert!(error.contains("no model `llama` is known"), "{error}");
        let error = Subject::find("./llama.gguf", nowhere).unwrap_err().to_string();
        assert!(error.contains("cannot find ./llama.gguf"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let error = Subject::find("llama", folder.path()).unwrap_err().to_string();
        assert!(error.contains("llama"), "{error}");
    }
}
