//! Numbers of a plan for people who know neither tokens nor types of weights.

use exo_api::fits::FitPlanView;
use exo_planner::Remedy;
use exo_types::size_up;

/// Three words in four tokens, in English.
const WORDS_PER_TOKEN: f64 = 0.75;
/// A printed page.
const WORDS_PER_PAGE: f64 = 500.0;

/// "runs: an answer begins after 0.8 s and comes at about 12 words a second, faster than people read"
pub fn runs(best: &FitPlanView) -> String {
    let tokens_per_s = best.predicted.tokens_per_s.expected;
    let begins = seconds(best.predicted.ttft_ms.expected / 1e3);
    let words = words_per_s(tokens_per_s);
    format!(
        "runs: an answer begins after {begins} and comes at about {words} words a second, {}",
        pace(tokens_per_s)
    )
}

/// The same for a table: "after 0.8 s, 12 words a second".
pub fn answer(best: &FitPlanView) -> String {
    let begins = seconds(best.predicted.ttft_ms.expected / 1e3);
    format!("after {begins}, {} words a second", words_per_s(best.predicted.tokens_per_s.expected))
}

fn words_per_s(tokens_per_s: f64) -> String {
    let words = tokens_per_s * WORDS_PER_TOKEN;
    if words >= 10.0 { format!("{words:.0}") } else { format!("{words:.1}") }
}

fn pace(tokens_per_s: f64) -> &'static str {
    match tokens_per_s {
        t if t >= 20.0 => "much faster than people read",
        t if t >= super::READING_TOKENS_PER_S => "about as fast as people read",
        t if t >= 2.0 => "slower than people read",
        _ => "so slowly that it is for work that can wait",
    }
}

/// Seconds as people say them.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

/// A context as pages of text: "1 page", "6 pages".
pub fn pages(tokens: u32) -> String {
    let pages = page_count(tokens);
    if pages == 1 { "1 page".to_owned() } else { format!("{pages} pages") }
}

fn page_count(tokens: u32) -> u32 {
    (f64::from(tokens) * WORDS_PER_TOKEN / WORDS_PER_PAGE).round().max(1.0) as u32
}

/// "made for at most 2048 tokens (about 3 pages) at once, not 4096 (6)"
pub fn made_for_less(made_for: u32, asked: u32) -> String {
    let (most, pages) = (pages(made_for), page_count(asked));
    format!("made for at most {made_for} tokens (about {most}) at once, not {asked} ({pages})")
}

/// "shorter texts: 2,048 tokens (3 pages) at once, not 4,096 (6)"
pub fn shorter(fits: u32, asked: u32) -> String {
    format!(
        "shorter texts: {fits} tokens (about {}) at once, not {asked} ({})",
        pages(fits),
        page_count(asked)
    )
}

/// More room on a disk, where that is the remedy: "1.2 GiB more room for models on laptop: raise
/// `disk_quota_mib` there, or delete models"
pub fn of_disk(remedy: &Remedy) -> Option<String> {
    let Remedy::Disk { node, bytes, settings } = remedy else { return None };
    let bytes = size_up(*bytes);
    Some(match exo_planner::settings_text(settings).as_str() {
        "" => format!(
            "{bytes} more room for models on {node}, whose disk is too full: delete models or other files there"
        ),
        settings => format!("{bytes} more room for models on {node}: {settings} there, or delete models"),
    })
}

/// Bytes in the unit that machines are sold in.
pub fn gib(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib < 10.0 { format!("{gib:.1} GiB") } else { format!("{gib:.0} GiB") }
}
