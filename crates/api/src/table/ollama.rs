//! Fields of `/api/*`.

use super::Treatment::{Hint, Honoured, Refused};
use super::embeddings::{DIMENSIONS, POOLING};
use super::{Field, Table, field};

/// `POST /api/chat`
pub const OLLAMA_CHAT: Table = Table { endpoint: "POST /api/chat", fields: [CHAT_FIELDS, COMMON_FIELDS] };
/// `POST /api/generate`
pub const OLLAMA_GENERATE: Table =
    Table { endpoint: "POST /api/generate", fields: [GENERATE_FIELDS, COMMON_FIELDS] };
/// `POST /api/embed`
pub const OLLAMA_EMBED: Table =
    Table { endpoint: "POST /api/embed", fields: [EMBED_FIELDS, EMBED_COMMON_FIELDS] };
/// `POST /api/embeddings`
pub const OLLAMA_EMBEDDINGS: Table =
    Table { endpoint: "POST /api/embeddings", fields: [EMBEDDINGS_FIELDS, EMBED_COMMON_FIELDS] };
/// `POST /api/show` and `POST /api/pull`
pub const OLLAMA_NAMED: Table =
    Table { endpoint: "POST /api/show` and `POST /api/pull", fields: [NAMED_FIELDS, &[]] };

/// The version of Ollama whose API is spoken here: the one that brought `logprobs`, the latest of the fields
/// that are honoured. Clients refuse servers that name an older one than they need.
pub const OLLAMA_VERSION: &str = "0.12.11";

const TEXT_ONLY: &str = "models here read and write text";
const PLACED: &str = "where and how a model computes is decided when it is placed";

const CHAT_FIELDS: &[Field] = &[
    field("messages", Honoured, "at most 16,384; without any the model is made ready, and nothing else"),
    field("messages[].role", Honoured, "system, user, assistant, tool"),
    field("messages[].content", Honoured, "a string"),
    field("messages[].thinking", Honoured, "goes to the model where its template has a place for it"),
    field("messages[].images", Refused(&["[]"]), TEXT_ONLY),
    field("messages[].tool_calls", Honoured, "of the assistant"),
    field("messages[].tool_calls[].id", Honoured, ""),
    field("messages[].tool_calls[].type", Hint, ""),
    field("messages[].tool_calls[].index", Hint, "answers have it in `function`"),
    field("messages[].tool_calls[].function", Honoured, ""),
    field("messages[].tool_calls[].function.name", Honoured, ""),
    field("messages[].tool_calls[].function.arguments", Honoured, "an object"),
    field("messages[].tool_calls[].function.index", Hint, "answers have it"),
    field("messages[].tool_calls[].function.description", Hint, ""),
    field(
        "messages[].tool_name",
        Honoured,
        "of a result: it answers the first call of that tool that has no answer",
    ),
    field("messages[].tool_call_id", Honoured, "of a result: the call that it answers"),
    field(
        "tools",
        Honoured,
        "at most 512; where the model's template has a form for calls that is recognised; with `format`, an answer that calls none is of it",
    ),
    field("tools[].cache_control", Hint, "what was read before is found by itself"),
    field(
        "tools[].function.strict",
        Honoured,
        "extension; true: arguments keep to the schema wholly, or the request is refused",
    ),
    field("tools[].function.cache_control", Hint, "what was read before is found by itself"),
];

const GENERATE_FIELDS: &[Field] = &[
    field("prompt", Honoured, "without it the model is made ready, and nothing else"),
    field("suffix", Honoured, "where the model has fill-in-the-middle tokens"),
    field("system", Honoured, "not with `raw` or `suffix`"),
    field("raw", Honoured, "true: the prompt as it is, through no template"),
    field("images", Refused(&["[]"]), TEXT_ONLY),
    field("template", Refused(&[r#""""#]), "the model's own is used; send `raw` for another"),
    field("context", Refused(&["[]"]), "what was read before is found by itself: send the conversation"),
    field("width", Refused(&["0"]), TEXT_ONLY),
    field("height", Refused(&["0"]), TEXT_ONLY),
    field("steps", Refused(&["0"]), TEXT_ONLY),
];

const COMMON_FIELDS: &[Field] = &[
    field("model", Honoured, "name or id of a model"),
    field("stream", Honoured, "default true: a line of JSON for each piece"),
    field("format", Honoured, "`json` or a schema; kept to while the answer is made"),
    field(
        "think",
        Honoured,
        "true, which a model that does not think refuses, false, low, medium, high; left out, a model that thinks does, and the answer shows it",
    ),
    field("logprobs", Honoured, ""),
    field("top_logprobs", Honoured, "0 to 20"),
    field(
        "keep_alive",
        Hint,
        "what a person placed stays, what a request loaded goes after `unload_idle_s`; only 0 without a prompt, which asks to unload, is refused: `exo unload`",
    ),
    field(
        "truncate",
        Honoured,
        "default false: a prompt that is too long is an error; true: whole turns of a conversation go, the oldest first, and \
         `exo.left_out_messages` says how many messages",
    ),
    field("shift", Refused(&["false"]), "an answer ends where the context does"),
    field("options", Honoured, ""),
    field("options.temperature", Honoured, "0 to 2, default 0.8; 0 is greedy"),
    field("options.top_k", Honoured, "default 40; 0 and -1 keep all"),
    field("options.top_p", Honoured, "0 to 1, default 0.9"),
    field("options.min_p", Honoured, "0 to 1"),
    field(
        "options.seed",
        Honoured,
        "the same seed, prompt and options give the same text; below 0: another each time",
    ),
    field("options.repeat_penalty", Honoured, "0.01 to 10, default 1"),
    field("options.presence_penalty", Honoured, "-2 to 2"),
    field("options.frequency_penalty", Honoured, "-2 to 2"),
    field(
        "options.repeat_last_n",
        Honoured,
        "the penalties count so many tokens before the next, prompt included: default 64; -1: all; 0: no penalties",
    ),
    field("options.num_predict", Honoured, "an upper bound; -1 and -2: what the context leaves"),
    field("options.stop", Honoured, "a string or up to 16"),
    field(
        "options.num_ctx",
        Honoured,
        "a model that is not placed is placed with it; more than it is placed with is an error with the command",
    ),
    field("options.num_keep", Hint, "nothing of a prompt is left out"),
    field("options.penalize_newline", Refused(&["true"]), "penalties are the same for all tokens"),
    field("options.typical_p", Honoured, "0 to 1, default 1"),
    field("options.tfs_z", Refused(&["1"]), "`typical_p`, `min_p` and `top_p` do something similar"),
    field("options.mirostat", Refused(&["0"]), "the same"),
    field("options.mirostat_tau", Hint, "of `mirostat`"),
    field("options.mirostat_eta", Hint, "of `mirostat`"),
    field("options.numa", Hint, PLACED),
    field("options.num_batch", Hint, PLACED),
    field("options.num_gpu", Hint, PLACED),
    field("options.main_gpu", Hint, PLACED),
    field("options.low_vram", Hint, PLACED),
    field("options.f16_kv", Hint, PLACED),
    field("options.use_mmap", Hint, PLACED),
    field("options.use_mlock", Hint, PLACED),
    field("options.num_thread", Hint, PLACED),
    field("options.logits_all", Hint, "`logprobs` asks for probabilities"),
    field("options.vocab_only", Refused(&["false"]), "models are loaded whole"),
    field("options.embedding_only", Refused(&["false"]), "not yet"),
];

const EMBED_FIELDS: &[Field] = &[
    field("input", Honoured, "a string, token ids, or an array of at most 2048 of these"),
    field("dimensions", Honoured, DIMENSIONS),
    field(
        "truncate",
        Honoured,
        "default true: what is too long loses its end, and the answer says how many tokens; false: an error",
    ),
];

const EMBEDDINGS_FIELDS: &[Field] = &[field(
    "prompt",
    Honoured,
    "a string; what is too long loses its end, and the answer says how many tokens",
)];

const EMBED_COMMON_FIELDS: &[Field] = &[
    field("model", Honoured, "name or id of a model"),
    field("pooling", Honoured, POOLING),
    field("keep_alive", Hint, "what a person placed stays, what a request loaded goes after `unload_idle_s`"),
    field(
        "options",
        Honoured,
        "those of `/api/generate`: all but `num_ctx` are about generated tokens and ask for nothing",
    ),
    field("options.num_ctx", Honoured, "as in `/api/generate`"),
];

const NAMED_FIELDS: &[Field] = &[
    field("model", Honoured, "name or id of a model"),
    field("name", Honoured, "the older name of `model`"),
    field("stream", Honoured, "of `/api/pull`; its answer is one line in both"),
    field("verbose", Refused(&["false"]), "of `/api/show`: no tables of tokens are shown"),
    field("insecure", Hint, "nothing is fetched: `exo pull` does that"),
    field("system", Refused(&[r#""""#]), "of `/api/show`: models are shown as they are"),
    field("template", Refused(&[r#""""#]), "the same"),
    field("options", Hint, "of `/api/show`: the same"),
    field("username", Refused(&[r#""""#]), "of `/api/pull`: nothing is fetched"),
    field("password", Refused(&[r#""""#]), "the same"),
];
