//! What can go wrong with a hub, a mirror or a line, each by a switch.

use std::time::Duration;

/// All off by default.
#[derive(Clone, Default, Debug)]
pub struct Faults {
    /// Files redirect to themselves.
    pub redirect_loop: bool,
    /// Files redirect here.
    pub redirect_to: Option<String>,
    /// A range is answered with 200 and the whole file.
    pub whole_for_range: bool,
    /// A range is answered with another one, so many bytes further.
    pub shifted_range: u64,
    /// A range is answered with so many bytes, however many were asked for.
    pub range_length: Option<usize>,
    /// A range is said to be of a file that has so many bytes more.
    pub larger_total: u64,
    /// Behind the bytes of a file come so many more, beyond the length that was said.
    pub surplus: usize,
    /// A page of HTML comes instead of a file.
    pub html_for_file: bool,
    /// Every n-th answer with bytes of a file breaks off half way.
    pub break_every: u64,
    /// Every n-th answer with bytes of a file stops half way and says nothing more.
    pub stall_every: u64,
    /// Every n-th answer with bytes of a file comes half way as fast as the others, and then with some KB a
    /// second.
    pub crawl_every: u64,
    /// The byte at this offset of every file is another one.
    pub wrong_byte_at: Option<u64>,
    /// The ETag is another one in every answer.
    pub changing_etag: bool,
    /// Files are said to be of this commit.
    pub other_commit: Option<String>,
    /// Files are said to have this digest when they are asked for, other than in the tree.
    pub other_digest: Option<String>,
    /// The API answers with a page of HTML.
    pub html_for_json: bool,
    /// The API answers with `Content-Encoding: gzip`.
    pub gzip: bool,
    /// The list of files never ends.
    pub endless_tree: bool,
    /// A document of the API has so many bytes.
    pub long_document: usize,
    /// After so many requests a token is refused with 401.
    pub token_refused_after: Option<u64>,
    /// So many requests for bytes are answered with 429 and this `Retry-After`.
    pub limited: Option<(u64, String)>,
    /// So many requests for bytes are answered with 503.
    pub unavailable: u64,
    /// With this `Retry-After`.
    pub unavailable_after: Option<String>,
    /// A signed address is good for so many requests.
    pub signature_uses: Option<u64>,
    /// The registry wants a token, which is good for so many requests.
    pub registry_token_uses: Option<u64>,
    /// Where the registry says that tokens are given out, instead of at itself.
    pub registry_realm: Option<String>,
    /// Documents and bytes come one by one, so long apart.
    pub drip_every: Option<Duration>,
    /// So many bytes a second on each connection.
    pub bytes_per_s: Option<u64>,
}
