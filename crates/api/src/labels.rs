//! What requests are counted by: a number between nodes, a text in metrics and in the API.

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As metrics and the API write it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Its number between nodes.
            pub fn number(self) -> u8 {
                self as u8
            }

            /// The one of that number, if this build knows it.
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

labels! {
    /// Which way a request for text came. New ones at the end: their numbers travel between nodes.
    Endpoint {
        /// OpenAI's chat completions.
        Chat = "chat",
        /// OpenAI's completions.
        Completions = "completions",
        /// OpenAI's responses.
        Responses = "responses",
        /// Anthropic's messages.
        Messages = "messages",
        /// Ollama's chat.
        OllamaChat = "ollama_chat",
        /// Ollama's generate.
        OllamaGenerate = "ollama_generate",
        /// OpenAI's embeddings.
        Embeddings = "embeddings",
        /// Ollama's two endpoints for embeddings.
        OllamaEmbed = "ollama_embed",
    }
}

labels! {
    /// How a request for text ended. New ones at the end: their numbers travel between nodes.
    RequestEnd {
        /// The model ended the answer, or a stop string appeared.
        Stop = "stop",
        /// `max_tokens` or the context was reached.
        Length = "length",
        /// The answer calls tools.
        ToolCalls = "tool_calls",
        /// The request's client left.
        Cancelled = "cancelled",
        /// No model of that name.
        ModelUnknown = "model_unknown",
        /// The cluster's memory is too small.
        DoesNotFit = "does_not_fit",
        /// The model's files cannot be used.
        LoadFailed = "load_failed",
        /// No room for the prompt.
        PromptTooLong = "prompt_too_long",
        /// A part of it does not go with the model.
        Invalid = "invalid",
        /// Too many requests waited.
        QueueFull = "queue_full",
        /// The model was not available then.
        Unavailable = "unavailable",
        /// The request's client read too slowly.
        SlowReader = "slow_reader",
        /// Nothing came in time.
        Deadline = "deadline",
        /// The request ran and broke.
        Failed = "failed",
        /// A bug of exo.
        Internal = "internal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_between_nodes_lead_back_and_texts_differ() {
        for end in RequestEnd::ALL {
            assert_eq!(RequestEnd::from_number(end.number()), Some(*end));
            assert_eq!(RequestEnd::ALL.iter().filter(|other| other.as_str() == end.as_str()).count(), 1);
        }
        for endpoint in Endpoint::ALL {
            assert_eq!(Endpoint::from_number(endpoint.number()), Some(*endpoint));
        }
        assert_eq!((Endpoint::from_number(200), RequestEnd::from_number(200)), (None, None));
    }
}
