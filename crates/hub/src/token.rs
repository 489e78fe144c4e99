//! A token for a hub, which is shown nowhere.

use std::fmt;

use crate::HubError;

pub(crate) const TOKEN_BYTES_MAX: usize = 512;
pub(crate) const NO_TOKEN: &str = "it is not a token: one line of at most 512 visible letters";

/// A text that cannot be a token. It is not quoted.
pub(crate) fn no_token() -> HubError {
    HubError::Setting { name: "the token".to_owned(), reason: NO_TOKEN.to_owned() }
}

/// A token for the hub. It is never printed: `Debug` and `Display` show stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, if the text can be one.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits =
            !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// The token itself: for this user's own node, over its local channel, and for nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The header that carries it. Only [`crate::Client`] asks, and only for the hub it is for.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}
