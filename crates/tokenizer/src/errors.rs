//! What can go wrong with tokenizers and chat templates, one enum per operation.

/// A tokenizer could not be made from what the model file says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A part of the description is larger than any real tokenizer's.
    #[error("the tokenizer's {what} is {actual}, at most {limit} is accepted")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its size.
        actual: u64,
        /// Largest accepted.
        limit: u64,
    },
    /// `tokenizer.json` is not what it should be.
    #[error("tokenizer.json: {reason}")]
    Json {
        /// What the parser said, with line and column where it knows them.
        reason: String,
    },
    /// A GGUF key is missing, contradicts another or has a value out of range.
    #[error("tokenizer.ggml.{key}: {reason}")]
    Gguf {
        /// The key after `tokenizer.ggml.`.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A kind of tokenizer, pre-tokenizer or decoder there is no code for.
    #[error("the {what} `{name}` is not supported")]
    Unsupported {
        /// Which part.
        what: &'static str,
        /// Its name in the file.
        name: String,
    },
    /// A regular expression of the file does not compile, or only within more memory than allowed.
    #[error("the tokenizer's pattern `{pattern}` is refused: {reason}")]
    Pattern {
        /// The first 80 characters of the pattern.
        pattern: String,
        /// Why it is refused.
        reason: String,
    },
    /// GGUF files have no keys that mean the same.
    #[error("a GGUF file cannot hold this tokenizer: {reason}")]
    NoGguf {
        /// What has no counterpart.
        reason: String,
    },
    /// The parts are well-formed and do not fit together.
    #[error("the tokenizer cannot be built: {reason}")]
    Inconsistent {
        /// What does not fit.
        reason: String,
    },
}

/// A text could not be turned into tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More text than is encoded at once.
    #[error("the text has {bytes} bytes, at most {limit} are encoded at once")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// Largest accepted.
        limit: usize,
    },
    /// A pattern of the tokenizer takes too long on this text.
    #[error("the tokenizer's pattern `{pattern}` gave up at byte {offset} of the text: {reason}")]
    PatternExploded {
        /// The first 80 characters of the pattern.
        pattern: String,
        /// Where in the piece of text it was looking.
        offset: usize,
        /// Which bound was reached.
        reason: String,
    },
    /// The segmenting model failed.
    #[error("the tokenizer failed: {reason}")]
    Model {
        /// What it said.
        reason: String,
    },
}

/// Token ids could not be turned into text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There is no such token.
    #[error("token id {id} is outside the vocabulary of {vocab_len}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of ids.
        vocab_len: u32,
    },
}

/// A chat template could not be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than any real template.
    #[error("the chat template has {bytes} bytes, at most {limit} are accepted")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// Largest accepted.
        limit: usize,
    },
    /// It is not valid Jinja, or uses what we do not have.
    #[error("the chat template does not compile: {reason}")]
    Syntax {
        /// What and where.
        reason: String,
    },
    /// It called `raise_exception`: the conversation is not one it accepts.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// The template's own words, cut to 500 characters.
        message: String,
    },
    /// It ran longer than any real template.
    #[error("the chat template ran for more than its limit of {limit}")]
    TooSlow {
        /// Which limit, with its unit.
        limit: String,
    },
    /// It wrote, or built up in memory, more than any real prompt.
    #[error("the chat template produced more than {limit} bytes")]
    TooMuchOutput {
        /// Largest accepted.
        limit: usize,
    },
    /// It failed on these messages: an undefined value, a wrong type.
    #[error("the chat template failed: {reason}")]
    Failed {
        /// What and where.
        reason: String,
    },
}

/// A chat template prints no calls of tools that could be recognised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallFormatError {
    /// There is no template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template cannot be used at all.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// It refuses a conversation with calls, or fails on it.
    #[error("it prints no calls")]
    Render(#[source] TemplateError),
    /// The names of tools are not in the prompt.
    #[error("it does not show tools to the model")]
    ShowsNoTools,
    /// Neither of the two forms that are known.
    #[error("its calls are neither JSON with a name and then arguments, nor parameters between tags")]
    UnknownForm,
    /// No token that ends a turn stands behind the calls.
    #[error("nothing ends a turn of calls")]
    NoEnd,
    /// As JSON, but not as JSON is printed elsewhere.
    #[error("its arguments are spaced in another way")]
    OtherSpaces,
    /// What an answer calls would be known too late.
    #[error("its calls have the name behind the arguments")]
    NameBehindArguments,
    /// Texts would come back otherwise than they were given.
    #[error("it changes the texts that stand between tags in its calls")]
    ChangesTexts,
    /// A call with tags and no parameter.
    #[error("it prints no call without arguments")]
    NoEmptyCall,
    /// A call with tags and no parameter is of another form.
    #[error("its calls without arguments look otherwise than those with some")]
    OtherEmptyCall,
    /// A call's end depends on its parameters.
    #[error("what stands behind a call's parameters differs")]
    OtherEnd,
    /// No sign tells where a call begins.
    #[error("nothing stands in front of the names in its calls")]
    NoSign,
    /// No signs tell parameters apart.
    #[error("no signs stand around the parameters of its calls")]
    NoParameterSigns,
    /// The end of a value could be a part of it.
    #[error("what closes a parameter of its calls begins as JSON goes on")]
    CloseAsJson,
    /// No sign tells where a call ends.
    #[error("nothing closes a call behind its parameters")]
    NoClose,
    /// Some values stand between other tags.
    #[error("the parameters of its calls do not all stand between the same tags")]
    OtherTags,
    /// A value that is no text is not printed as JSON.
    #[error("it prints values between tags in another way than JSON ({key})")]
    NotJson {
        /// The parameter of the probe that shows it.
        key: &'static str,
    },
    /// What stands for `true` and `false` could be anything.
    #[error("it prints true and false as no words")]
    NoWords,
}
