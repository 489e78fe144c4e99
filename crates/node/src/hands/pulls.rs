//! What all members are told of this node's downloads.

use exo_api::{PullState, PullView};
use exo_cluster::wire::PullReport;
use exo_cluster::wire::limits::{PULL_REFERENCE_CHARS_MAX, PULLS_MAX};
use exo_types::clean_name;

/// Those that are not done, those under way before what is paused or failed, the oldest first of each.
pub fn reports(pulls: Vec<PullView>) -> Vec<PullReport> {
    let mut unfinished: Vec<PullView> =
        pulls.into_iter().filter(|pull| pull.state != PullState::Done).collect();
    unfinished.sort_by_key(|pull| !pull.state.is_under_way());
    unfinished.iter().take(PULLS_MAX).map(report).collect()
}

fn report(pull: &PullView) -> PullReport {
    let rate = pull.bytes_per_s.filter(|rate| rate.is_finite() && *rate >= 0.0);
    PullReport {
        reference: clean_name(&without_secrets(&pull.reference), PULL_REFERENCE_CHARS_MAX),
        state: pull.state.number(),
        verified_bytes: pull.verified_bytes,
        total_bytes: pull.total_bytes,
        bytes_per_s: rate.map(|rate| rate as u64),
    }
}

/// An address may have a key of whoever asked behind `?`, or in front of `@`.
fn without_secrets(reference: &str) -> String {
    let end = reference.find(['?', '#']).unwrap_or(reference.len());
    let Some((scheme, rest)) = reference[..end].split_once("://") else { return reference[..end].to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_what_may_be_a_secret() {
        let told = [
            ("hf.co/a/b:Q4_K_M@1234", "hf.co/a/b:Q4_K_M@1234"),
            ("https://me:key@host.example/x/m.gguf?sig=key#key", "https://host.example/x/m.gguf"),
            ("https://host.example/a@b.gguf", "https://host.example/a@b.gguf"),
            ("https://me:key@host.example", "https://host.example"),
            ("", ""),
        ];
        for (reference, expected) in told {
            assert_eq!(without_secrets(reference), expected);
        }
    }

    #[test]
    fn at_most_eight_are_told_and_none_that_is_done() {
        let pull = |number: u64, state: &str| -> PullView {
            serde_json::from_value(serde_json::json!({
                "id": number.to_string(), "reference": format!("hf.co/a/{number}"), "state": state, "node": "n", "node_name": "n",
                "source": "hub", "files": 1, "verified_bytes": number, "total_bytes": 100, "ranges": 1, "bytes_per_s": 2.5,
                "was_here": false, "started_unix_s": 0
            }))
            .unwrap()
        };
        let all = (0..20).map(|number| pull(number, if number % 2 == 0 { "done" } else { "fetching" }));
        let told = reports(all.collect());
        assert_eq!(
            told.iter().map(|pull| pull.verified_bytes).collect::<Vec<_>>(),
            [1, 3, 5, 7, 9, 11, 13, 15]
        );
        let first = PullReport {
            reference: "hf.co/a/1".to_owned(),
            state: PullState::Fetching.number(),
            verified_bytes: 1,
            total_bytes: Some(100),
            bytes_per_s: Some(2),
        };
        assert_eq!(told[0], first);
        let stale = (0..9).map(|number| pull(number, if number % 2 == 0 { "failed" } else { "paused" }));
        let told = reports(stale.chain([pull(9, "fetching")]).collect());
        assert_eq!(told.iter().map(|p| p.verified_bytes).collect::<Vec<_>>(), [9, 0, 1, 2, 3, 4, 5, 6]);
    }
}
