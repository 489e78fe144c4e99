//! Texts as Zod 4 and Pydantic 2 write them into a schema: a format and a pattern in one, lengths, and
//! patterns that look ahead.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

mod common;

use common::takes;
use exo_constraint::{Body, Compiler, Schema, Strictness, TokenKind};
use serde_json::{Value, json};

const END: u32 = 256;

fn compiler() -> Compiler {
    common::compiler(&[], vec![TokenKind::Control], END)
}

fn grammar(schema: &Value) -> String {
    let read = Schema::read(schema, Strictness::Whole).unwrap_or_else(|error| panic!("{schema}: {error}"));
    common::layout(Body::Json(read.value)).grammar()
}

/// What a library writes, texts that are of it, and texts that are not.
type Case = (Value, &'static [&'static str], &'static [&'static str]);

fn check(cases: &[Case]) {
    let compiler = compiler();
    for (schema, taken, refused) in cases {
        let made = compiler.constrain(grammar(schema));
        let constraint = made.unwrap_or_else(|error| panic!("{schema}: {error}"));
        for (texts, is_taken) in [(taken, true), (refused, false)] {
            for text in *texts {
                let fold = compiler.start(&constraint).unwrap();
                assert_eq!(takes(fold, &Value::from(*text).to_string()), is_taken, "{schema}: {text:?}");
            }
        }
    }
}

fn zod(format: &str, pattern: &str) -> Value {
    json!({"type": "string", "format": format, "pattern": pattern})
}

const DAY: &str = r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))";
const CLOCK: &str = r"(?:[01]\d|2[0-3]):[0-5]\d";

/// `z.iso.date()`, `z.iso.datetime()` with and without an offset, a precision and seconds that may lack.
#[test]
fn dates_and_times_are_of_their_pattern_and_of_their_format() {
    let datetime = |time: &str| zod("date-time", &format!("^{DAY}T(?:{time})$"));
    check(&[
        (
            zod("date", &format!("^{DAY}$")),
            &["2024-02-29", "1999-12-31"],
            &["2023-02-29", "2024-2-1", "2024-13-01"],
        ),
        (
            datetime(&format!(r"{CLOCK}:[0-5]\d(?:\.\d+)?(?:Z)")),
            &["2024-02-29T10:00:00Z", "2024-05-01T23:59:59.125Z"],
            &["2023-02-29T10:00:00Z", "2024-05-01T10:00:00+01:00", "2024-05-01T10:00Z", "2024-05-01"],
        ),
        // Zod itself takes a time without seconds here, and the format does not.
        (
            datetime(&format!(r"{CLOCK}(?::[0-5]\d(?:\.\d+)?)?(?:Z)")),
            &["2024-02-29T10:00:00Z"],
            &["2024-05-01T10:00Z", "2024-05-01T24:00:00Z"],
        ),
        (
            datetime(&format!(r"{CLOCK}:[0-5]\d(?:\.\d+)?(?:Z|([+-](?:[01]\d|2[0-3]):[0-5]\d))")),
            &["2024-05-01T10:00:00.5+02:00", "2024-05-01T10:00:00Z"],
            &["2024-05-01T10:00:00", "2024-05-01T10:00:00+25:00"],
        ),
        (
            datetime(&format!(r"{CLOCK}:[0-5]\d\.\d{{3}}(?:Z)")),
            &["2024-05-01T10:00:00.123Z"],
            &["2024-05-01T10:00:00.12Z", "2024-05-01T10:00:00Z"],
        ),
        (
            json!({"type": "string", "pattern": format!(r"^{CLOCK}(?::[0-5]\d(?:\.\d+)?)?$")}),
            &["10:00", "10:00:59.5"],
            &["10:0", "24:00"],
        ),
        (
            json!({"type": "string", "format": "date-time", "pattern": "Z$", "minLength": 20, "maxLength": 20}),
            &["2024-05-01T10:00:00Z"],
            &["2024-05-01T10:00:00.1Z", "2024-05-01T10:00:00z"],
        ),
    ]);
}

/// `z.email()` of 4.0 to 4.5 and of 4.6, and Pydantic's `EmailStr` with a pattern.
#[test]
fn addresses_are_of_their_pattern_and_of_their_format() {
    const EARLIER: &str =
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    const LATER: &str = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let taken: &[&str] = &["joe@example.com", "o'neil.joe+x@a-b.example.org", "a_@b.io"];
    // The format lets no part of a domain end with `-`.
    let refused: &[&str] = &[
        ".joe@example.com",
        "joe..b@example.com",
        "joe.@example.com",
        "joe@example",
        "joe@example.c",
        "joe@a-.com",
        "joe'@example.com",
        "joe",
    ];
    check(&[
        (zod("email", EARLIER), taken, refused),
        (zod("email", LATER), taken, refused),
        (
            zod("email", r"@example\.com$"),
            &["joe@example.com", "a!b@example.com"],
            &["joe@example.org", "joe..b@example.com"],
        ),
        (
            json!({"type": "string", "format": "email", "maxLength": 9}),
            &["a@b.co"],
            &["joe@example.com", "a@"],
        ),
        (
            json!({"type": "string", "format": "email", "allOf": [{"pattern": LATER}, {"pattern": "^a"}]}),
            &["a@b.io"],
            &["b@b.io", "a@b"],
        ),
    ]);
}

/// `z.uuid()`, `z.guid()`, `z.ipv4()`, `z.ipv6()`, `z.hostname()`, `z.iso.duration()`, Pydantic's `AnyUrl`.
#[test]
fn names_and_durations_are_of_their_pattern_and_of_their_format() {
    const UUID: &str = r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$";
    const IPV4: &str = r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$";
    const IPV6: &str = r"^(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,7}:|([0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,5}(:[0-9a-fA-F]{1,4}){1,2}|([0-9a-fA-F]{1,4}:){1,4}(:[0-9a-fA-F]{1,4}){1,3}|([0-9a-fA-F]{1,4}:){1,3}(:[0-9a-fA-F]{1,4}){1,4}|([0-9a-fA-F]{1,4}:){1,2}(:[0-9a-fA-F]{1,4}){1,5}|[0-9a-fA-F]{1,4}:((:[0-9a-fA-F]{1,4}){1,6})|:((:[0-9a-fA-F]{1,4}){1,7}|:))$";
    const HOST: &str = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";
    const DURATION: &str =
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$";
    check(&[
        (
            zod("uuid", UUID),
            &["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000"],
            &["123e4567-e89b-02d3-a456-426614174000", "123e4567-e89b-12d3-c456-426614174000", "123e4567"],
        ),
        (zod("ipv4", IPV4), &["192.168.0.1", "0.0.0.0"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
        // The format takes an address that ends like one of IPv4, and the pattern does not.
        (
            zod("ipv6", IPV6),
            &["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1"],
            &["1::2::3", "::ffff:1.2.3.4", "1:2"],
        ),
        (zod("hostname", HOST), &["a", "a-b.example"], &["-a", "a..b", "example."]),
        (
            zod("duration", DURATION),
            &["P3W", "P1Y2M3D", "PT5M", "P1DT2H30M"],
            &["P", "PT", "P1DT", "P1W2D", "PT1.5S", "P1H"],
        ),
        (
            json!({"type": "string", "format": "uri", "minLength": 1, "maxLength": 12, "pattern": "^https://"}),
            &["https://a.b"],
            &["http://a.b/c", "https://a.b/cd", ""],
        ),
    ]);
}

/// Formats that are Zod's own names of a pattern.
#[test]
fn what_zod_calls_a_format_is_the_pattern_beside_it() {
    check(&[
        (
            zod("nanoid", "^[a-zA-Z0-9_-]{21}$"),
            &["V1StGXR8_Z5jdHi6B-myT"],
            &["V1StGXR8", "V1StGXR8_Z5jdHi6B-my!"],
        ),
        (zod("cuid2", "^[0-9a-z]+$"), &["tz4a98xxat96iws9"], &["", "Tz"]),
        (
            zod("ulid", "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$"),
            &["01ARZ3NDEKTSV4RRFFQ69G5FAV"],
            &["81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAI"],
        ),
        (
            zod("base64", "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"),
            &["", "aGk=", "aGVsbG8h"],
            &["aGk", "a===", "aG k"],
        ),
        (zod("e164", r"^\+[1-9]\d{6,14}$"), &["+4930123456"], &["4930123456", "+0930123456"]),
        (
            zod("mac", "^(?:[0-9A-F]{2}:){5}[0-9A-F]{2}$|^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$"),
            &["00:1A:2B:3C:4D:5E", "00:1a:2b:3c:4d:5e"],
            &["00:1A:2b:3C:4D:5E", "00:1A"],
        ),
        (zod("lowercase", "^[^A-Z]*$"), &["abc 1"], &["aBc"]),
    ]);
}

/// Pydantic's `Decimal`, with and without decimal places, and what people write of passwords.
#[test]
fn what_a_pattern_looks_at_ahead_of_all_else_holds_beside_it() {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    check(&[
        (
            pattern(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"),
            &["1.5", "-1", "+.5", "0."],
            &["", "-", ".", "+.", "1.2.3"],
        ),
        (pattern(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$"), &["1.25", "1.2500"], &["1.255", "-."]),
        (
            pattern(r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{6,}$"),
            &["aB3456", "xxxxA1"],
            &["aB345", "ab3456", "AB3456", "aBcdef"],
        ),
        (pattern(r"^(?!0)\d+$"), &["10"], &["01", "0", ""]),
        (
            json!({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 3}),
            &["aa", "aaa"],
            &["a", "aaaa", "ab"],
        ),
    ]);
}

/// `z.iso.time()` of 4.0 says that it is of a format whose times have a zone.
#[test]
fn what_no_text_can_be_is_refused_with_what_it_lacks() {
    let compiler = compiler();
    let time = zod("time", r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$");
    let error = compiler.constrain(grammar(&time)).unwrap_err().to_string();
    assert!(error.contains("no text is of all its patterns") && error.contains("a zone"), "{error}");
    let mut field = json!({"type": "object", "properties": {"at": time}, "required": ["at"]});
    field = Schema::read(&field, Strictness::Whole).unwrap().value;
    let mut takes = |texts: &Value| compiler.try_texts(texts);
    let left_out = Schema::drop_patterns(&mut field, &mut takes);
    assert!(
        left_out[0].to_string().starts_with("at `#/properties/at`: a text cannot be held to"),
        "{left_out:?}"
    );
    assert!(left_out.len() == 1 && field["properties"]["at"]["pattern"].is_string(), "{field}");
}
