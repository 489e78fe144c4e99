//! From a model's tokenizer to what holds its answers to a grammar: for the driver that words and checks
//! them, and for the stage that samples.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use exo_constraint::{CompileError, Compiler, TokenKind, Vocabulary};
use exo_engine::StartConstraint;
use exo_formats::{ModelConfig, OpenError};
use exo_sampler::TokenConstraint;
use exo_tokenizer::{EncodeOptions, Tokenizer, TokenizerError};
use exo_types::Constraint;

use exo_accelerators::chain;

/// Tokens that end an answer: the model's and the tokenizer's, sorted.
pub fn end_ids(config: &ModelConfig, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ids = [config.eos.as_slice(), tokenizer.end_ids()].concat();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The same for the same model on every node. Takes some tenths of a second for a large vocabulary.
pub fn compiler(tokenizer: &Tokenizer, end_ids: &[u32]) -> Result<Compiler, CompileError> {
    let is_control =
        |id| tokenizer.is_special(id) || tokenizer.bos() == Some(id) || end_ids.binary_search(&id).is_ok();
    let token = |id| match is_control(id) {
        true => TokenKind::Control,
        false => TokenKind::Bytes(tokenizer.token_bytes(id).unwrap_or_default()),
    };
    Compiler::new(Vocabulary::new((0..tokenizer.vocab_len()).map(token), end_ids)?)
}

/// Has forced tokens named as the tokenizer spells them.
fn spelled_by(compiler: Compiler, tokenizer: Tokenizer) -> Compiler {
    compiler.with_spelling(Arc::new(move |text| {
        tokenizer.encode(text, EncodeOptions::default()).unwrap_or_default()
    }))
}

/// For the engine of a model's last stage. The vocabulary is read again when the first answer asks for it: it
/// must not stay in memory for those that never do. One that could not be read is read again for the next.
pub fn for_stage(model: PathBuf) -> Arc<StartConstraint> {
    let made: OnceLock<Compiler> = OnceLock::new();
    Arc::new(move |constraint: &Constraint| {
        let compiler = match made.get() {
            Some(compiler) => compiler,
            None => {
                let read = read(&model).map_err(|e| chain(&e))?;
                made.get_or_init(|| read)
            }
        };
        Ok(Box::new(compiler.start_or_end(constraint)) as Box<dyn TokenConstraint>)
    })
}

/// Why a stage cannot hold answers to a grammar.
#[derive(Debug, thiserror::Error)]
enum GrammarError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Compile(#[from] CompileError),
}

fn read(path: &std::path::Path) -> Result<Compiler, GrammarError> {
    let mut model = exo_formats::open(path)?;
    let tokenizer = Tokenizer::from_source(&model.take_tokenizer())?;
    let compiler = compiler(&tokenizer, &end_ids(&model.config, &tokenizer))?;
    Ok(spelled_by(compiler, tokenizer))
}

#[cfg(test)]
mod tests;
