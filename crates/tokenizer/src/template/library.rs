//! Filters, tests and methods of values: the engine's own, with their sizes checked.
//!
//! Only the named ones exist. The engine has more, some of which make much out of little (`batch`, `slice`,
//! `pprint`), and a later version may bring others.

use std::sync::OnceLock;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::budget::Budget;
use super::functions;
use super::numbers::plain_number;

/// With a space between, as the tests below.
const FILTERS: &str = "\
    abs attr bool capitalize count d default dictsort escape e first float groupby indent int items join \
    last length lines list lower map max min reject rejectattr replace reverse round safe select \
    selectattr sort split string sum title trim unique upper";

const TESTS: &str = "\
    != < <= == > >= boolean defined divisibleby endingwith eq equalto escaped even false filter float ge \
    greaterthan gt in int integer iterable le lessthan lower lt mapping ne none number odd safe sameas \
    sequence startingwith string test true undefined upper";

/// Those that ask for a number.
const CALCULATES: [&str; 5] = ["abs", "bool", "float", "int", "round"];

/// Widest padding a format or an indent may ask for.
const WIDTH_MAX: usize = 999;

pub(crate) fn add_to(environment: &mut Environment<'_>, budget: &Budget) {
    for name in FILTERS.split(' ').chain(["tojson"]) {
        let budget = budget.clone();
        environment.add_filter(name, move |arguments: Rest<ValueOrKwargs>| {
            let mut arguments = arguments.into_values();
            budget.weigh(arguments.iter())?;
            if CALCULATES.contains(&name)
                && let Some(number) = arguments.first_mut()
            {
                *number = plain_number(number);
            }
            check_result(&budget, name, &arguments)?;
            budget.settle(native().empty_state().apply_filter(name, &arguments)?)
        });
    }
    for name in TESTS.split(' ') {
        let budget = budget.clone();
        environment.add_test(name, move |arguments: Rest<ValueOrKwargs>| {
            let arguments: Vec<Value> = arguments.into_values().iter().map(plain_number).collect();
            // Only these look inside: others are asked of values no one may weigh, like macros.
            if arguments.len() > 1 {
                budget.weigh(arguments.iter())?;
            }
            // The engine goes through `none` as through nothing, and Python does not: templates ask whether
            // there are `tools`.
            if name == "iterable" && arguments.first().is_some_and(Value::is_none) {
                return Ok(false);
            }
            native().empty_state().perform_test(name, &arguments)
        });
    }
    let budget = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        budget.weigh(std::iter::once(value).chain(arguments))?;
        let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
        check_result(&budget, method, &all)?;
        budget.settle(call_method(state, value, method, arguments)?)
    });
}

/// The engine with everything, for the names above to work in.
fn native() -> &'static Environment<'static> {
    static NATIVE: OnceLock<Environment<'static>> = OnceLock::new();
    NATIVE.get_or_init(|| {
        let mut environment = Environment::new();
        environment.add_filter("tojson", functions::tojson);
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment
    })
}

/// Refuses what would make more than it is given, before it is made. `arguments[0]` is the value itself.
fn check_result(budget: &Budget, name: &str, arguments: &[Value]) -> Result<(), Error> {
    let text = |i: usize| arguments.get(i).and_then(Value::as_str).unwrap_or_default();
    let number = |i: usize| arguments.get(i).and_then(Value::as_usize).unwrap_or(0);
    match name {
        "replace" => {
            let found = if text(1).is_empty() { text(0).len() + 1 } else { text(0).matches(text(1)).count() };
            budget.check_size(text(0).len().saturating_add(found.saturating_mul(text(2).len())))
        }
        // As a filter the list comes first, as a method the separator does.
        "join" => {
            let (list, separator) = match arguments.first().map(Value::kind) {
                Some(ValueKind::String) => (arguments.get(1), text(0)),
                _ => (arguments.first(), text(1)),
            };
            let count = list.and_then(Value::len).unwrap_or(0);
            budget.check_size(count.saturating_mul(separator.len()))
        }
        "indent" if number(1) > WIDTH_MAX => Err(too_wide()),
        "indent" => budget.check_size(text(0).lines().count().saturating_mul(number(1))),
        "format" if has_wide_number(text(0)) => Err(too_wide()),
        _ => Ok(()),
    }
}

fn too_wide() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a width of more than {WIDTH_MAX}"))
}

/// Whether a format asks for a width or precision of more than three digits, or leaves it to an argument.
fn has_wide_number(format: &str) -> bool {
    let long_number = format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 3);
    long_number
        || format.contains('*')
        || format
            .match_indices('{')
            .any(|(at, _)| format[at + 1..].split('}').next().is_some_and(|inside| inside.contains('{')))
}

/// Python's methods; two that templates use and the compatibility layer lacks.
fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), method, arguments) {
        (Some(text), "removeprefix", [prefix]) => {
            let prefix = prefix.as_str().unwrap_or_default();
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (Some(text), "removesuffix", [suffix]) => {
            let suffix = suffix.as_str().unwrap_or_default();
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}
