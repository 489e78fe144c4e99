//! What can go wrong with tokenizers and chat templates, one enum per operation.

#![allow(missing_docs)] // the messages say what the fields are

/// A tokenizer could not be made from what the model file says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    #[error("the tokenizer's {what} is {actual}, at most {limit} is accepted")]
    TooLarge { what: &'static str, actual: u64, limit: u64 },
    #[error("tokenizer.json: {reason}")]
    Json { reason: String },
    #[error("tokenizer.ggml.{key}: {reason}")]
    Gguf { key: &'static str, reason: String },
    #[error("the {what} `{name}` is not supported")]
    Unsupported { what: &'static str, name: String },
    #[error("the tokenizer's pattern `{pattern}` is refused: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("a GGUF file cannot hold this tokenizer: {reason}")]
    NoGguf { reason: String },
    #[error("the tokenizer cannot be built: {reason}")]
    Inconsistent { reason: String },
}

/// A text could not be turned into tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    #[error("the text has {bytes} bytes, at most {limit} are encoded at once")]
    TooLong { bytes: usize, limit: usize },
    #[error("the tokenizer's pattern `{pattern}` gave up at byte {offset} of the text: {reason}")]
    PatternExploded { pattern: String, offset: usize, reason: String },
    #[error("the tokenizer failed: {reason}")]
    Model { reason: String },
}

/// Token ids could not be turned into text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error("token id {id} is outside the vocabulary of {vocab_len}")]
    UnknownToken { id: u32, vocab_len: u32 },
}

/// A chat template could not be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    #[error("the chat template has {bytes} bytes, at most {limit} are accepted")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the chat template does not compile: {reason}")]
    Syntax { reason: String },
    /// It called `raise_exception`: the conversation is not one it accepts.
    #[error("the chat template refuses this conversation: {message}")]
    Raised { message: String },
    #[error("the chat template ran for more than its limit of {limit}")]
    TooSlow { limit: String },
    #[error("the chat template produced more than {limit} bytes")]
    TooMuchOutput { limit: usize },
    #[error("the chat template failed: {reason}")]
    Failed { reason: String },
}

/// A chat template prints no calls of tools that could be recognised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallFormatError {
    #[error("the model has no chat template")]
    NoTemplate,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("it prints no calls")]
    Render(#[source] TemplateError),
    #[error("it does not show tools to the model")]
    ShowsNoTools,
    #[error("its calls are neither JSON with a name and then arguments, nor parameters between tags")]
    UnknownForm,
    #[error("nothing ends a turn of calls")]
    NoEnd,
    #[error("its arguments are spaced in another way")]
    OtherSpaces,
    #[error("its calls have the name behind the arguments")]
    NameBehindArguments,
    #[error("it changes the texts that stand between tags in its calls")]
    ChangesTexts,
    #[error("it prints no call without arguments")]
    NoEmptyCall,
    #[error("its calls without arguments look otherwise than those with some")]
    OtherEmptyCall,
    #[error("what stands behind a call's parameters differs")]
    OtherEnd,
    #[error("nothing stands in front of the names in its calls")]
    NoSign,
    #[error("no signs stand around the parameters of its calls")]
    NoParameterSigns,
    #[error("what closes a parameter of its calls begins as JSON goes on")]
    CloseAsJson,
    #[error("nothing closes a call behind its parameters")]
    NoClose,
    #[error("the parameters of its calls do not all stand between the same tags")]
    OtherTags,
    #[error("it prints values between tags in another way than JSON ({key})")]
    NotJson { key: &'static str },
    #[error("it prints true and false as no words")]
    NoWords,
}
