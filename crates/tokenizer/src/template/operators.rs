//! The operations that make values, with their sizes checked, and those that calculate, with numbers that
//! have a spelling as plain ones.

use std::sync::OnceLock;

use minijinja::machinery::Instruction;
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, Expression, Value, context};

use super::budget::Budget;
use super::functions::json_text;
use super::lists::growing_list;
use super::numbers::plain_number;

// Names no template can write.
const CONCAT: &str = "exo ~";
const ADD: &str = "exo +";
const MUL: &str = "exo *";
const SUB: &str = "exo -";
const DIV: &str = "exo /";
const INT_DIV: &str = "exo //";
const REM: &str = "exo %";
const POW: &str = "exo **";
const NEG: &str = "exo neg";
const SLICE: &str = "exo []";
const LIST: &str = "exo list";
const TUPLE: &str = "exo tuple";
const MAP: &str = "exo map";
const EQ: &str = "exo ==";
const NE: &str = "exo !=";
const LT: &str = "exo <";
const LTE: &str = "exo <=";
const GT: &str = "exo >";
const GTE: &str = "exo >=";
const IN: &str = "exo in";

/// The function that does what `instruction` does, and how many arguments are on the stack for it.
pub(crate) fn replacement(instruction: &Instruction<'_>) -> Option<(&'static str, u16)> {
    let short = |count: usize| u16::try_from(count).ok();
    Some(match instruction {
        Instruction::StringConcat => (CONCAT, 2),
        Instruction::Add => (ADD, 2),
        Instruction::Mul => (MUL, 2),
        Instruction::Sub => (SUB, 2),
        Instruction::Div => (DIV, 2),
        Instruction::IntDiv => (INT_DIV, 2),
        Instruction::Rem => (REM, 2),
        Instruction::Pow => (POW, 2),
        Instruction::Neg => (NEG, 1),
        Instruction::Slice => (SLICE, 4),
        Instruction::BuildList(Some(count)) => (LIST, short(*count)?),
        // The engine makes `[]` once; each is a list of its own.
        Instruction::LoadConst(value)
            if value.kind() == ValueKind::Seq && value.len() == Some(0) && !value.is_tuple() =>
        {
            (LIST, 0)
        }
        Instruction::BuildTuple(Some(count)) => (TUPLE, short(*count)?),
        Instruction::BuildMap(pairs) => (MAP, short(pairs.checked_mul(2)?)?),
        Instruction::Eq => (EQ, 2),
        Instruction::Ne => (NE, 2),
        Instruction::Lt => (LT, 2),
        Instruction::Lte => (LTE, 2),
        Instruction::Gt => (GT, 2),
        Instruction::Gte => (GTE, 2),
        Instruction::In => (IN, 2),
        _ => return None,
    })
}

pub(crate) fn add_to(environment: &mut Environment<'_>, budget: &Budget) {
    let mut add = |name: &'static str, function: fn(&Budget, &[Value]) -> Result<Value, Error>| {
        let budget = budget.clone();
        let checked = move |arguments: Rest<Value>| {
            budget.weigh(arguments.iter())?;
            function(&budget, &arguments)
        };
        environment.add_function(name, checked);
    };
    add(CONCAT, concat);
    add(ADD, plus);
    add(MUL, times);
    add(SUB, |_, a| natively(Native::Sub, a));
    add(DIV, |_, a| natively(Native::Div, a));
    add(INT_DIV, |_, a| natively(Native::IntDiv, a));
    add(REM, |_, a| natively(Native::Rem, a));
    add(POW, |_, a| natively(Native::Pow, a));
    add(NEG, |_, a| natively(Native::Neg, a));
    add(SLICE, |budget, a| budget.settle(natively(Native::Slice, a)?));
    add(LIST, |budget, items| match items {
        [] => Ok(growing_list(budget)),
        items => Ok(Value::from(items.to_vec())),
    });
    add(TUPLE, |_, items| Ok(Value::from(Tuple::from(items.to_vec()))));
    add(MAP, |_, pairs| {
        Ok(Value::from_pairs(pairs.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()))))
    });
    add(EQ, |_, a| Ok(Value::from(plain_number(&a[0]) == plain_number(&a[1]))));
    add(NE, |_, a| Ok(Value::from(plain_number(&a[0]) != plain_number(&a[1]))));
    add(LT, |_, a| Ok(Value::from(plain_number(&a[0]) < plain_number(&a[1]))));
    add(LTE, |_, a| Ok(Value::from(plain_number(&a[0]) <= plain_number(&a[1]))));
    add(GT, |_, a| Ok(Value::from(plain_number(&a[0]) > plain_number(&a[1]))));
    add(GTE, |_, a| Ok(Value::from(plain_number(&a[0]) >= plain_number(&a[1]))));
    add(IN, |_, a| natively(Native::In, a));
}

fn concat(budget: &Budget, sides: &[Value]) -> Result<Value, Error> {
    let text = format!("{}{}", sides[0], sides[1]);
    budget.check_size(text.len())?;
    Ok(Value::from(text))
}

fn plus(budget: &Budget, sides: &[Value]) -> Result<Value, Error> {
    match (sides[0].as_str(), sides[1].as_str()) {
        (Some(a), Some(b)) => {
            budget.check_size(a.len() + b.len())?;
            Ok(Value::from([a, b].concat()))
        }
        // A template that adds the arguments of a call to a text was given them as JSON text.
        (Some(text), None) if sides[1].kind() == ValueKind::Map => {
            let text = text.to_owned() + &json_text(&sides[1])?;
            budget.check_size(text.len())?;
            Ok(Value::from(text))
        }
        _ => budget.settle(natively(Native::Add, sides)?),
    }
}

fn times(budget: &Budget, sides: &[Value]) -> Result<Value, Error> {
    for (value, count) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        if matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable) {
            let count = usize::try_from(count.clone()).unwrap_or(usize::MAX);
            budget.check_size(budget.weigh([value])?.saturating_mul(count))?;
        }
    }
    budget.settle(natively(Native::Mul, sides)?)
}

/// Operations the engine keeps to itself: reached through tiny expressions.
#[derive(Clone, Copy)]
enum Native {
    Add,
    Mul,
    Slice,
    In,
    Sub,
    Div,
    IntDiv,
    Rem,
    Pow,
    Neg,
}

fn natively(operation: Native, arguments: &[Value]) -> Result<Value, Error> {
    static EXPRESSIONS: OnceLock<[Expression<'static, 'static>; 10]> = OnceLock::new();
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    let expressions = EXPRESSIONS.get_or_init(|| {
        let environment = ENVIRONMENT.get_or_init(Environment::empty);
        ["a + b", "a * b", "a[b:c:d]", "a in b", "a - b", "a / b", "a // b", "a % b", "a ** b", "-a"]
            .map(|source| environment.compile_expression(source).expect("these are valid"))
    });
    let of = |i: usize| arguments.get(i).map(plain_number).unwrap_or_default();
    expressions[operation as usize].eval(context! { a => of(0), b => of(1), c => of(2), d => of(3) })
}
