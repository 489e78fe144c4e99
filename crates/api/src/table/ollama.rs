//! Fields of `/api/*`.

use super::Treatment::{Hint, Honoured, Refused};
use super::embeddings::{DIMENSIONS, POOLING};
use super::{Field, Table};

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

const CHAT_FIELDS: &[Field] = fields! {
    "messages": Honoured, "at most 16,384; without any the model is made ready, and nothing else";
    "messages[].role": Honoured, "system, user, assistant, tool";
    "messages[].content": Honoured, "a string";
    "messages[].thinking": Honoured, "goes to the model where its template has a place for it";
    "messages[].images": Refused(&["[]"]), TEXT_ONLY;
    "messages[].tool_calls": Honoured, "of the assistant";
    "messages[].tool_calls[].id": Honoured, "";
    "messages[].tool_calls[].type": Hint, "";
    "messages[].tool_calls[].index": Hint, "answers have it in `function`";
    "messages[].tool_calls[].function": Honoured, "";
    "messages[].tool_calls[].function.name": Honoured, "";
    "messages[].tool_calls[].function.arguments": Honoured, "an object";
    "messages[].tool_calls[].function.index": Hint, "answers have it";
    "messages[].tool_calls[].function.description": Hint, "";
    "messages[].tool_name": Honoured,
        "of a result: it answers the first call of that tool that has no answer";
    "messages[].name": Honoured,
        "of a result: the older name of `tool_name`, which counts where both are sent";
    "messages[].tool_call_id": Honoured, "of a result: the call that it answers";
    "tools": Honoured,
        "at most 512; where the model's template has a form for calls that is recognised; with `format`, an answer that calls none is of it";
    "tools[].cache_control": Hint, "what was read before is found by itself";
    "tools[].function.strict": Honoured,
        "extension; true: arguments keep to the schema wholly, or the request is refused";
    "tools[].function.cache_control": Hint, "what was read before is found by itself";
};

const GENERATE_FIELDS: &[Field] = fields! {
    "prompt": Honoured, "without it the model is made ready, and nothing else";
    "suffix": Honoured, "where the model has fill-in-the-middle tokens";
    "system": Honoured, "not with `raw` or `suffix`";
    "raw": Honoured, "true: the prompt as it is, through no template";
    "images": Refused(&["[]"]), TEXT_ONLY;
    "template": Refused(&[r#""""#]), "the model's own is used; send `raw` for another";
    "context": Refused(&["[]"]), "what was read before is found by itself: send the conversation";
    "width": Refused(&["0"]), TEXT_ONLY;
    "height": Refused(&["0"]), TEXT_ONLY;
    "steps": Refused(&["0"]), TEXT_ONLY;
};

const COMMON_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "stream": Honoured, "default true: a line of JSON for each piece";
    "format": Honoured, "`json` or a schema; kept to while the answer is made";
    "think": Honoured,
        "true, which a model that does not think refuses, false, low, medium, high; left out, a model that thinks does, and the answer shows it";
    "logprobs": Honoured, "";
    "top_logprobs": Honoured, "0 to 20";
    "keep_alive": Hint,
        "what a person placed stays, what a request loaded goes after `unload_idle_s`; only 0 without a prompt, which asks to unload, is refused: `exo unload`";
    "truncate": Honoured,
        "default false: a prompt that is too long is an error; true: whole turns of a conversation go, the oldest first, and \
         `exo.left_out_messages` says how many messages";
    "shift": Refused(&["false"]), "an answer ends where the context does";
    "options": Honoured, "";
    "options.temperature": Honoured, "0 to 2, default 0.8; 0 is greedy";
    "options.top_k": Honoured, "default 40; 0 and -1 keep all";
    "options.top_p": Honoured, "0 to 1, default 0.9";
    "options.min_p": Honoured, "0 to 1";
    "options.seed": Honoured,
        "the same seed, prompt and options give the same text; below 0: another each time";
    "options.repeat_penalty": Honoured, "0.01 to 10, default 1";
    "options.presence_penalty": Honoured, "-2 to 2";
    "options.frequency_penalty": Honoured, "-2 to 2";
    "options.repeat_last_n": Honoured,
        "the penalties count so many tokens before the next, prompt included: default 64; -1: all; 0: no penalties";
    "options.num_predict": Honoured, "an upper bound; -1 and -2: what the context leaves";
    "options.stop": Honoured, "a string or up to 16";
    "options.num_ctx": Honoured,
        "a model that is not placed is placed with it; more than it is placed with is an error with the command";
    "options.num_keep": Hint, "nothing of a prompt is left out";
    "options.penalize_newline": Refused(&["true"]), "penalties are the same for all tokens";
    "options.typical_p": Honoured, "0 to 1, default 1";
    "options.tfs_z": Refused(&["1"]), "`typical_p`, `min_p` and `top_p` do something similar";
    "options.mirostat": Refused(&["0"]), "the same";
    "options.mirostat_tau": Hint, "of `mirostat`";
    "options.mirostat_eta": Hint, "of `mirostat`";
    "options.numa": Hint, PLACED;
    "options.num_batch": Hint, PLACED;
    "options.num_gpu": Hint, PLACED;
    "options.main_gpu": Hint, PLACED;
    "options.low_vram": Hint, PLACED;
    "options.f16_kv": Hint, PLACED;
    "options.use_mmap": Hint, PLACED;
    "options.use_mlock": Hint, PLACED;
    "options.num_thread": Hint, PLACED;
    "options.logits_all": Hint, "`logprobs` asks for probabilities";
    "options.vocab_only": Refused(&["false"]), "models are loaded whole";
    "options.embedding_only": Refused(&["false"]), "not yet";
};

const EMBED_FIELDS: &[Field] = fields! {
    "input": Honoured, "a string, token ids, or an array of at most 2048 of these";
    "dimensions": Honoured, DIMENSIONS;
    "truncate": Honoured,
        "default true: what is too long loses its end, and the answer says how many tokens; false: an error";
};

const EMBEDDINGS_FIELDS: &[Field] = fields! {
    "prompt": Honoured, "a string; what is too long loses its end, and the answer says how many tokens";
};

const EMBED_COMMON_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "pooling": Honoured, POOLING;
    "keep_alive": Hint, "what a person placed stays, what a request loaded goes after `unload_idle_s`";
    "options": Honoured,
        "those of `/api/generate`: all but `num_ctx` are about generated tokens and ask for nothing";
    "options.num_ctx": Honoured, "as in `/api/generate`";
};

const NAMED_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "name": Honoured, "the older name of `model`";
    "stream": Honoured, "of `/api/pull`; its answer is one line in both";
    "verbose": Refused(&["false"]), "of `/api/show`: no tables of tokens are shown";
    "insecure": Hint, "nothing is fetched: `exo pull` does that";
    "system": Refused(&[r#""""#]), "of `/api/show`: models are shown as they are";
    "template": Refused(&[r#""""#]), "the same";
    "options": Hint, "of `/api/show`: the same";
    "username": Refused(&[r#""""#]), "of `/api/pull`: nothing is fetched";
    "password": Refused(&[r#""""#]), "the same";
};
