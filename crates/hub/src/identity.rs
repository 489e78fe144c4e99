//! Whether an answer is of the file that was asked for, by what the hub and the host of the bytes say of it.

use crate::answers::{self, header};
use crate::client::HubResponse;
use crate::fetch_plan::PlannedFile;

/// What the headers say that is not so of this file at this commit.
pub(crate) fn problem(answer: &HubResponse, file: &PlannedFile, commit: Option<&str>) -> Option<String> {
    let quoted = crate::errors::quoted;
    for headers in [&answer.hub_headers, &answer.headers] {
        if let (Some(found), Some(expected)) = (header(headers, "x-repo-commit"), commit)
            && found != expected
        {
            return Some(format!("it is of commit {}, expected {expected}", quoted(found)));
        }
        if let (Some(found), Some(expected)) = (header(headers, "x-linked-etag"), &file.sha256)
            && !answers::etag(found).eq_ignore_ascii_case(expected)
        {
            return Some(format!("it is the file {}, expected {expected}", quoted(answers::etag(found))));
        }
        if let Some(found) = header(headers, "x-linked-size").and_then(|s| s.parse::<u64>().ok())
            && found != file.size
        {
            return Some(format!("the file has {found} bytes, expected {}", file.size));
        }
    }
    None
}
