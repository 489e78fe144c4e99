//! Text to token ids and back, streaming decode, chat templates.
