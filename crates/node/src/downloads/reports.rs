//! What all members are told of this node's downloads.

use exo_api::{FetchSourceView, PullState, PullView};
use exo_cluster::wire::limits::{FETCH_SOURCES_MAX, PULL_REFERENCE_CHARS_MAX, PULLS_MAX};
use exo_cluster::wire::{FetchSource, PullReport};
use exo_types::{NodeId, clean_name};

/// The member of that name.
type IdOf<'a> = &'a dyn Fn(&str) -> Option<NodeId>;

/// Those that are not done, those under way before what is paused or failed, the oldest first of each.
pub fn reports(pulls: Vec<PullView>, id_of: IdOf<'_>) -> Vec<PullReport> {
    let mut unfinished: Vec<PullView> =
        pulls.into_iter().filter(|pull| pull.state != PullState::Done).collect();
    unfinished.sort_by_key(|pull| !pull.state.is_under_way());
    unfinished.iter().take(PULLS_MAX).map(|pull| report(pull, id_of)).collect()
}

fn report(pull: &PullView, id_of: IdOf<'_>) -> PullReport {
    let rate = pull.bytes_per_s.filter(|rate| rate.is_finite() && *rate >= 0.0);
    PullReport {
        reference: clean_name(&without_secrets(&pull.reference), PULL_REFERENCE_CHARS_MAX),
        state: pull.state.number(),
        verified_bytes: pull.verified_bytes,
        total_bytes: pull.total_bytes,
        bytes_per_s: rate.map(|rate| rate as u64),
        sources: pull.sources.iter().filter_map(|of| source(of, id_of)).take(FETCH_SOURCES_MAX).collect(),
    }
}

/// Others know a member by its id. What one gave that has left the cluster since is not told.
fn source(of: &FetchSourceView, id_of: IdOf<'_>) -> Option<FetchSource> {
    let member = match &of.member {
        Some(name) => Some(id_of(name)?),
        None => None,
    };
    Some(FetchSource { member, bytes: of.bytes, bytes_per_s: of.bytes_per_s })
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

    fn pull(number: u64, state: &str) -> PullView {
        serde_json::from_value(serde_json::json!({
            "id": number.to_string(), "reference": format!("hf.co/a/{number}"), "state": state, "node": "n", "node_name": "n",
            "source": "hub", "files": 1, "verified_bytes": number, "total_bytes": 100, "ranges": 1, "bytes_per_s": 2.5,
            "was_here": false, "started_unix_s": 0
        }))
        .unwrap()
    }

    #[test]
    fn what_came_from_members_is_told_by_their_ids_and_nothing_of_who_is_gone() {
        let ann = NodeId([7; 32]);
        let source = |member: Option<&str>, bytes| FetchSourceView {
            member: member.map(str::to_owned),
            bytes,
            bytes_per_s: 2 * bytes,
        };
        let sources = vec![source(Some("ann"), 7), source(Some("bob"), 6), source(None, 5)];
        let pulls = vec![PullView { sources, ..pull(1, "fetching") }];
        let told = reports(pulls, &|name| (name == "ann").then_some(ann));
        let of = |member, bytes| FetchSource { member, bytes, bytes_per_s: 2 * bytes };
        assert_eq!(told[0].sources, [of(Some(ann), 7), of(None, 5)]);
    }

    #[test]
    fn at_most_eight_are_told_and_none_that_is_done() {
        let all = (0..20).map(|number| pull(number, if number % 2 == 0 { "done" } else { "fetching" }));
        let told = reports(all.collect(), &|_| None);
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
            sources: Vec::new(),
        };
        assert_eq!(told[0], first);
        let stale = (0..9).map(|number| pull(number, if number % 2 == 0 { "failed" } else { "paused" }));
        let told = reports(stale.chain([pull(9, "fetching")]).collect(), &|_| None);
        assert_eq!(told.iter().map(|p| p.verified_bytes).collect::<Vec<_>>(), [9, 0, 1, 2, 3, 4, 5, 6]);
    }
}
