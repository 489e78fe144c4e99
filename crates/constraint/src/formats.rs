//! Formats of texts as patterns: those that the engine takes more loosely than they are meant, or more
//! narrowly, and for where a text is no JSON the others, too.

use std::fmt::Write;

/// Formats that are asserted.
pub(crate) const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Names that Zod writes as a format beside the pattern that they stand for. No standard knows them, and
/// they ask for nothing else.
const OF_A_PATTERN: &str = "\
    base64 base64url cidrv4 cidrv6 cuid cuid2 e164 emoji ksuid lowercase mac nanoid ulid uppercase xid";

/// The engine's own dates have a 29 February in every year.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
/// Hour and minute of a day.
const CLOCK: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
const FRACTION: &str = r"(?:\.[0-9]+)?";

const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+";
const QUOTED: &str = r##""(?:[ !#-\[\]-~]|\\[ -~])*""##;
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
const GROUP: &str = "[0-9a-fA-F]{1,4}";
const HOSTNAME: &str =
    r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*";
const UUID: &str = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// The pattern of a format that the engine is not left to; `None` for the others.
pub(crate) fn pattern(format: &str) -> Option<String> {
    let whole = match format {
        "date" => DATE.to_owned(),
        "date-time" => format!("{DATE}[tT]{}", time()),
        "email" => email(),
        "ipv6" => ipv6(),
        "time" => time(),
        _ => return None,
    };
    Some(format!("^{whole}$"))
}

/// Whether a format stands for the pattern beside it.
pub(crate) fn is_of_a_pattern(format: &str) -> bool {
    OF_A_PATTERN.split(' ').any(|name| name == format)
}

/// The expression of a whole text of a format that the engine is left to in JSON, as it takes it there, with
/// `/` escaped.
pub(crate) fn outside_json(format: &str) -> Option<String> {
    Some(match format {
        "duration" => duration(),
        "hostname" => HOSTNAME.to_owned(),
        "ipv4" => IPV4.to_owned(),
        "uri" => uri(),
        "uuid" => UUID.to_owned(),
        _ => return None,
    })
}

/// A second 60 is the last of a day of UTC. Of zones those are followed that are whole halves of an hour away
/// from it.
fn time() -> String {
    let mut leap = String::new();
    for hour in 0..24 {
        // Local time, and the offsets of those who are ahead of UTC and behind it.
        let (ahead, behind, utc) = ((hour + 1) % 24, 23 - hour, if hour == 23 { "|[zZ]" } else { "" });
        let _ = write!(leap, r"|{hour:02}:29:60{FRACTION}(?:\+{hour:02}:30|-{behind:02}:30)");
        let _ = write!(leap, r"|{hour:02}:59:60{FRACTION}(?:\+{ahead:02}:00|-{behind:02}:00{utc})");
    }
    format!("(?:{CLOCK}:[0-5][0-9]{FRACTION}(?:[zZ]|[+-]{CLOCK}){leap})")
}

/// A mailbox of RFC 5321.
fn email() -> String {
    format!(r"(?:{ATOM}(?:\.{ATOM})*|{QUOTED})@(?:{LABEL}(?:\.{LABEL})*|\[{IPV4}\]|\[IPv6:{}\])", ipv6())
}

/// An address of RFC 3986: eight groups, or fewer around `::`; the last two may be an IPv4 address.
fn ipv6() -> String {
    let last = format!("(?:{GROUP}:{GROUP}|{IPV4})");
    let mut forms = format!("(?:{GROUP}:){{6}}{last}|::(?:{GROUP}:){{5}}{last}");
    for groups in 0..5 {
        let (before, behind) = (up_to(groups), 4 - groups);
        let _ = write!(forms, "|{before}::(?:{GROUP}:){{{behind}}}{last}");
    }
    let _ = write!(forms, "|{}::{GROUP}|{}::", up_to(5), up_to(6));
    format!("(?:{forms})")
}

/// A duration of RFC 3339.
fn duration() -> String {
    let time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
    let date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
    format!("P(?:{date}(?:{time})?|{time}|[0-9]+W)")
}

/// An address of RFC 3986 with a scheme.
fn uri() -> String {
    const HEX: &str = "%[0-9a-fA-F]{2}";
    let sign = |more: &str| format!(r"(?:[a-zA-Z0-9\-._~!$&'()*+,;={more}]|{HEX})");
    let mut ip = format!("(?:{GROUP}:){{7}}{GROUP}|(?:{GROUP}:){{1,7}}:|:(?::{GROUP}){{1,7}}|::");
    for groups in 1..7 {
        let _ = write!(ip, "|(?:{GROUP}:){{1,{groups}}}(?::{GROUP}){{1,{}}}", 7 - groups);
    }
    let later = r"v[0-9a-fA-F]+\.[a-zA-Z0-9\-._~!$&'()*+,;=:]+";
    let host = format!(r"(?:\[(?:{ip}|{later})\]|{}*)", sign(""));
    let (user, of_path, behind) = (sign(":"), sign(":@"), sign(r":@\/?"));
    let more = format!(r"(?:\/{of_path}*)*");
    let authority = format!(r"\/\/(?:{user}*@)?{host}(?::[0-9]*)?");
    let path = format!(r"(?:{authority}{more}|\/(?:{of_path}+{more})?|{of_path}+{more})?");
    format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:{path}(?:\?{behind}*)?(?:\#{behind}*)?")
}

/// Nothing, or one group and at most so many in front of it.
fn up_to(groups: u32) -> String {
    format!("(?:(?:{GROUP}:){{0,{groups}}}{GROUP})?")
}
