//! Ten thousand outputs of models that know the signs and not their order, each cut at every place: always
//! the same parts, in a time that grows with the text alone.

use std::time::{Duration, Instant};

use exo_tokenizer::calls::AnswerFormat;

use crate::calls::parts;
use crate::{calls, channels, tagged_calls};

const OUTPUTS: usize = 10_000;

/// Whole thoughts and calls of all formats, parts of them, and what may stand between them.
const PIECES: [&str; 36] = [
    "<think>\nhm</think>\n\n",
    "<think>",
    "</think>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"{\"]}}\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
    "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"k\": 1}, \"id\": \"abcdefghi\"}]",
    "{\"name\": \"g\", \"parameters\": {\"k\": 1}}",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}",
    "<|channel|>final<|message|>",
    " to=functions.f<|channel|>commentary json<|message|>",
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    "{\"name\": \"f\", \"arguments\": ",
    "{}",
    "}",
    "{",
    "[",
    "]",
    "[TOOL_CALLS",
    ", \"id\": \"abcdefghi\"",
    "<function=f>\n",
    "<parameter=text>\n",
    "\n</parameter>\n",
    "</function>\n",
    "True",
    "7",
    "<|end|>",
    "<|chan",
    "so",
    "é",
    "\"",
    "\\",
    "<tool_",
];

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % below
    }
}

fn formats() -> Vec<AnswerFormat> {
    let mut all: Vec<AnswerFormat> = calls::cases().into_iter().map(|(format, ..)| format).collect();
    all.extend([channels::format(), tagged_calls::reading(tagged_calls::FUNCTION)]);
    all
}

#[test]
fn ten_thousand_outputs_have_the_same_parts_wherever_they_are_cut() {
    let (formats, mut random, mut divided) = (formats(), Random(3), 0);
    for output in 0..OUTPUTS {
        let format = &formats[output % formats.len()];
        let text: String = (0..random.below(6)).map(|_| PIECES[random.below(PIECES.len())]).collect();
        let whole = parts(format, &text, &[usize::MAX]);
        assert_eq!(parts(format, &text, &[1]), whole, "by letters: {text}");
        for at in 1..text.len() {
            assert_eq!(parts(format, &text, &[at, usize::MAX]), whole, "cut at {at}: {text}");
        }
        divided += usize::from(whole.len() > 1);
    }
    assert!(divided > OUTPUTS / 20, "only {divided} had more than one part: the test tests nothing");
}

/// How long it takes to read a text so often, in pieces of some letters.
fn time(format: &AnswerFormat, text: &str, times: usize) -> Duration {
    let began = Instant::now();
    (0..times).for_each(|_| drop(parts(format, text, &[4])));
    began.elapsed()
}

#[test]
fn a_long_text_takes_as_long_as_short_ones_of_its_length() {
    for format in formats() {
        // What each could be the beginning of, what is inside of a call, and what no sign is in.
        for (open, filling) in [
            ("", "<tool <|chan [TOOL "),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"", "some \\\" text } "),
            ("<tool_call>\n<function=f>\n<parameter=text>\n", "</param\n</parameter "),
            ("<think>", "</thin "),
        ] {
            let text = |times: usize| format!("{open}{}", filling.repeat(times));
            let (short, long) = (text(500), text(8000));
            let ratio = || time(&format, &long, 1).as_secs_f64() / time(&format, &short, 16).as_secs_f64();
            // What is quadratic takes sixteen times as long, always. The machine is shared: one good try is
            // enough.
            let is_linear = (0..20).any(|_| ratio() < 4.0);
            assert!(is_linear, "longer texts take longer for each of their bytes: {open}{filling}");
        }
    }
}
