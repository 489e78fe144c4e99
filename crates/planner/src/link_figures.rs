//! What a plan counts with of a link.

use exo_types::NodeId;

use crate::inputs::{Figure, LINK_RATE_ESTIMATED, RTT_ESTIMATED};
use crate::request::{LinkFacts, PlanRequest};

/// What a plan counts with between two nodes: the round trip in seconds, and the rate in bytes per second.
/// What was not measured is that of the other direction; what neither has, or what is absurd, is estimated.
pub fn link_figures(request: &PlanRequest, from: NodeId, to: NodeId) -> (Figure, Figure) {
    let of = |ends: (NodeId, NodeId)| request.links.iter().rfind(move |link| (link.from, link.to) == ends);
    let (link, back) = (of((from, to)), of((to, from)));
    let known = |figure: fn(&LinkFacts) -> Option<Figure>| {
        [link, back].into_iter().flatten().find_map(|link| figure(link)?.plausible())
    };
    let (rtt, rate) = (known(|link| link.rtt_s), known(|link| link.bytes_per_s));
    (rtt.unwrap_or(RTT_ESTIMATED), rate.unwrap_or(LINK_RATE_ESTIMATED))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_link_counts_as_it_was_measured_in_either_direction() {
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let measured = |value| Some(Figure::measured_at(value, Duration::from_secs(9), 3));
        let links = vec![
            LinkFacts { from: a, to: b, rtt_s: measured(1e-3), bytes_per_s: measured(f64::NAN) },
            LinkFacts { from: b, to: a, rtt_s: None, bytes_per_s: measured(1e8) },
        ];
        let shape = exo_types::ModelShape {
            layers: Vec::new(),
            embedding_bytes: 0,
            head_bytes: 0,
            embedding_packed_bytes: 0,
            head_packed_bytes: 0,
            tied: false,
            hidden: 0,
            attention: 0,
            vocab: 0,
            context_tokens_max: 0,
        };
        let request = PlanRequest { links, ..PlanRequest::new(shape, 1, Vec::new()) };
        let both = (measured(1e-3).unwrap(), measured(1e8).unwrap());
        assert_eq!([link_figures(&request, a, b), link_figures(&request, b, a)], [both, both]);
        assert_eq!(link_figures(&request, a, a), (RTT_ESTIMATED, LINK_RATE_ESTIMATED));
    }
}
