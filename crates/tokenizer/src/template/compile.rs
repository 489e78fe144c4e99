//! From source to instructions that cannot run away.
//!
//! minijinja counts instructions, but one instruction can double a string or repeat it a hundred million
//! times, and forty doublings fill any memory. So the instructions that make values are replaced, one for
//! one, by calls to functions of ours (`operators`) that check sizes first. That is what the
//! `unstable_machinery` feature is for here; `Cargo.lock` pins the version, and the tests cover every
//! replaced instruction.

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::budget::{Budget, OUTPUT_BYTES_MAX, found};
use super::{functions, library, operators};
use crate::TemplateError;
use crate::build::guarded;

/// The longest known templates have about 30 KiB.
const SOURCE_BYTES_MAX: usize = 128 << 10;
/// Words and signs between `{{` and `}}` or `{%` and `%}`: the compiler recurses once per operator.
const TOKENS_PER_TAG_MAX: usize = 512;
/// `elif`s in all: the compiler nests each in the one before.
const ELIFS_MAX: usize = 128;
/// What a constant repetition (`'-' * 40`) may come to; the compiler works it out.
const REPEATED_BYTES_MAX: u64 = 1 << 20;
/// Instructions of one rendering: real templates use some hundred per message.
const FUEL_MAX: usize = 1 << 20;
/// Text between tags that all instructions together may write; it cannot be checked while it is written.
const RAW_BYTES_MAX: usize = 256 << 20;
/// Depth of macros in macros, each counting four or five: enough for a JSON schema forty levels deep.
const RECURSION_MAX: usize = 200;
/// Stack of a rendering. What a namespace or a list is given after it was weighed makes values as deep as
/// there are instructions, and each drops the next: 128 bytes a level at most, without optimisation.
const STACK_BYTES: usize = 256 << 20;

/// A template ready to run.
pub(crate) struct Compiled<'s> {
    instructions: Instructions<'s>,
    blocks: BTreeMap<&'s str, Instructions<'s>>,
    fuel: u64,
}

/// Checks the size of `source` and makes it plain Jinja: `{% generation %}` marks the assistant's words for
/// training and means nothing here.
pub(crate) fn prepare(source: &str) -> Result<String, TemplateError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(TemplateError::TooLarge { bytes: source.len(), limit: SOURCE_BYTES_MAX });
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        let dash = tag.len() - tag.trim_start_matches(['-', '+']).len();
        let body = tag[dash..].trim_start();
        let word: String = body.chars().take_while(char::is_ascii_alphanumeric).collect();
        let replacement = match word.as_str() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                out.push_str(before);
                rest = tag;
                continue;
            }
        };
        out.extend([before, &tag[..dash], " ", replacement]);
        rest = &body[word.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

pub(crate) fn compile(source: &str) -> Result<Compiled<'_>, TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.map_err(|e| syntax_error(&e))?;
    check_tokens(source, &syntax)?;
    guarded(|| generate(source, syntax)).map_err(|reason| TemplateError::Syntax { reason })?
}

fn generate(source: &str, syntax: SyntaxConfig) -> Result<Compiled<'_>, TemplateError> {
    let tree = machinery::parse(source, "chat_template", syntax).map_err(|e| syntax_error(&e))?;
    let mut generator = CodeGenerator::new("chat_template", source);
    generator.compile_stmt(&tree);
    let (mut instructions, mut blocks) = generator.finish();
    let longest = [&mut instructions].into_iter().chain(blocks.values_mut()).map(replace).max().unwrap_or(0);
    let fuel = FUEL_MAX.min(RAW_BYTES_MAX / longest.max(1)) as u64;
    Ok(Compiled { instructions, blocks, fuel })
}

/// Puts our functions in the place of operations that make values. Returns the longest text between tags.
fn replace(instructions: &mut Instructions<'_>) -> usize {
    let (mut at, mut longest) = (0, 0);
    while let Some(instruction) = instructions.get_mut(at) {
        if let Instruction::EmitRaw(text) = instruction {
            longest = longest.max(text.len());
        }
        if let Some((name, arguments)) = operators::replacement(instruction) {
            *instruction = Instruction::CallFunction(name, Some(arguments));
        }
        at += 1;
    }
    longest
}

fn check_tokens(source: &str, syntax: &SyntaxConfig) -> Result<(), TemplateError> {
    let refuse = |reason: &str| Err(TemplateError::Syntax { reason: reason.to_owned() });
    let (mut elifs, mut tag) = (0, Tag::default());
    for token in machinery::tokenize(source, false, syntax.clone()) {
        let (token, _) = token.map_err(|e| syntax_error(&e))?;
        match &token {
            Token::VariableStart | Token::BlockStart => tag = Tag::default(),
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        tag.add(&token);
        if tag.tokens > TOKENS_PER_TAG_MAX {
            return refuse("a tag has more than 512 words and signs");
        }
        if elifs > ELIFS_MAX {
            return refuse("more than 128 elif");
        }
        if tag.multiplies && tag.factor.saturating_mul(tag.text_bytes) > REPEATED_BYTES_MAX {
            return refuse("a text is repeated to more than 1 MiB");
        }
    }
    Ok(())
}

/// What is known of the tag being read.
struct Tag {
    tokens: usize,
    multiplies: bool,
    /// Product of its numbers.
    factor: u64,
    /// Bytes of its literals, and one for each list or map.
    text_bytes: u64,
}

impl Default for Tag {
    fn default() -> Self {
        Self { tokens: 0, multiplies: false, factor: 1, text_bytes: 0 }
    }
}

impl Tag {
    fn add(&mut self, token: &Token<'_>) {
        self.tokens += 1;
        match token {
            Token::Mul => self.multiplies = true,
            Token::Int(number) => self.factor = self.factor.saturating_mul((*number).max(1)),
            Token::Int128(_) => self.factor = u64::MAX,
            Token::Str(text) => self.text_bytes += text.len() as u64,
            Token::String(text) => self.text_bytes += text.len() as u64,
            Token::BracketOpen | Token::ParenOpen => self.text_bytes += 1,
            _ => {}
        }
    }
}

impl<'s> Compiled<'s> {
    pub(crate) fn render(
        &self,
        context: Value,
        budget: Budget,
        now: Option<NaiveDateTime>,
    ) -> Result<String, TemplateError> {
        // Every template gets an environment of its own: the functions in it carry the budget.
        let mut environment = Environment::empty();
        environment.set_debug(false);
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_fuel(Some(self.fuel));
        operators::add_to(&mut environment, &budget);
        library::add_to(&mut environment, &budget);
        functions::add_to(&mut environment, &budget, now);
        let text = aside(|| self.run(&environment, context))?;
        let text = text.map_err(|e| render_error(&e, self.fuel))?;
        if text.len() > OUTPUT_BYTES_MAX {
            return Err(TemplateError::TooMuchOutput { limit: OUTPUT_BYTES_MAX });
        }
        Ok(text)
    }

    fn run<'e>(&'e self, environment: &'e Environment<'e>, context: Value) -> Result<String, Error>
    where
        's: 'e,
    {
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let (instructions, blocks) = (&self.instructions, &self.blocks);
        machinery::eval(environment, instructions, context, blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }
}

/// Runs a template on a stack that is large enough; a panic is an error.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    let failed = |reason: String| TemplateError::Failed { reason };
    let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES);
    std::thread::scope(|scope| match thread.spawn_scoped(scope, || guarded(work)) {
        Ok(running) => running.join().unwrap_or_else(|_| Err("it panicked".to_owned())).map_err(failed),
        Err(e) => Err(failed(format!("no thread could be started for it: {e}"))),
    })
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { reason: describe(error) }
}

fn render_error(error: &Error, fuel: u64) -> TemplateError {
    if let Some(ours) = found(error) {
        return ours;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if one.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::TooSlow { limit: format!("{fuel} instructions") };
        }
        cause = one.source();
    }
    TemplateError::Failed { reason: describe(error) }
}

/// The engine's words, cut short: they may quote a value.
fn describe(error: &Error) -> String {
    let text = error.to_string();
    if text.chars().count() <= 300 { text } else { text.chars().take(300).chain(['…']).collect() }
}
