//! Arguments that stand between tags, each parameter for itself: texts as they are, other values as JSON.
//!
//! A text may be anything that its schema takes but the sign that closes a parameter, so that nothing in it
//! leaves its place. What is a text and what is JSON is told by the schema; where it takes both, by what
//! stands there ([`ValueKinds`]).

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::literals::{escaped, quoted};
use crate::shape::{Shape, ShapeReader, Tags, ValueKinds};
use crate::{SchemaError, Strictness};

/// Arguments of one tool.
#[derive(Clone, PartialEq, Debug)]
pub struct TaggedArguments {
    tags: Tags,
    /// In the order of the schema.
    parameters: Vec<Parameter>,
    /// What parameters may be that the schema does not name, where there may be any.
    others: Option<Shape>,
}

#[derive(Clone, PartialEq, Debug)]
struct Parameter {
    name: String,
    shape: Shape,
    is_required: bool,
}

/// Words of an object's schema that are followed here.
const FOLLOWED: [&str; 7] =
    ["$defs", "$schema", "additionalProperties", "definitions", "properties", "required", "type"];

impl TaggedArguments {
    /// Reads a schema of an object, which [`crate::Schema`] has read before, and names what is not enforced
    /// between tags.
    pub fn read(
        schema: &Value,
        tags: &Tags,
        strictness: Strictness,
    ) -> Result<(Self, Vec<SchemaError>), SchemaError> {
        let mut read = Reader {
            shapes: ShapeReader::new(schema, tags),
            tags,
            strictness,
            left_out: Vec::new(),
            parameters: Vec::new(),
        };
        let words = read.shapes.arguments()?;
        for word in words.keys().filter(|word| !FOLLOWED.contains(&word.as_str())) {
            let reason = format!(
                "`{word:.60}` of all arguments is not enforced where the model writes each between tags of its own; say it of a parameter"
            );
            read.leave_out(SchemaError::at(std::slice::from_ref(word), reason))?;
        }
        let required = words.get("required").and_then(Value::as_array);
        let required: Vec<&str> =
            required.map_or_else(Vec::new, |names| names.iter().filter_map(Value::as_str).collect());
        let properties = words.get("properties").and_then(Value::as_object);
        read.declared(properties.into_iter().flatten(), &required)?;
        let others = match words.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            // A tool that names its parameters has no others, unless it says so.
            None if properties.is_some() => None,
            None => Some(Shape::any(tags)),
            Some(schema) => Some(read.shape(schema, &mut vec!["additionalProperties".to_owned()])?),
        };
        read.undeclared(&required, words, others.as_ref())?;
        Ok((Self { tags: tags.clone(), parameters: read.parameters, others }, read.left_out))
    }

    /// Any arguments.
    pub fn any(tags: &Tags) -> Self {
        Self { tags: tags.clone(), parameters: Vec::new(), others: Some(Shape::any(tags)) }
    }

    /// What each parameter may be, and what one may be that the schema does not name.
    pub fn kinds(&self) -> (Vec<(String, ValueKinds)>, ValueKinds) {
        let named = |parameter: &Parameter| (parameter.name.clone(), parameter.shape.kinds());
        let others = self.others.as_ref().map(Shape::kinds).unwrap_or_default();
        (self.parameters.iter().map(named).collect(), others)
    }

    /// Writes the rule `name`, and those that it is made of.
    pub(crate) fn write(&self, name: &str, rules: &mut String) {
        let open = &self.tags.open;
        let rest = quoted(self.tags.closing().2);
        let (mut row, mut values) = (String::new(), String::new());
        for (i, parameter) in self.parameters.iter().enumerate() {
            let rule = format!("{name}_{i}");
            let (mut forms, mut shapes) = (Vec::new(), String::new());
            for (of, middle, shape) in self.forms(&parameter.shape) {
                let sign = quoted(&format!("{open}{}{middle}", parameter.name));
                forms.push(format!("{sign} {rule}{of}_value {rest}"));
                shape.write(&format!("{rule}{of}_value"), &self.tags, &mut shapes);
            }
            let _ = writeln!(values, "{rule}: {}", forms.join(" | "));
            values.push_str(&shapes);
            let _ = write!(row, " {rule}{}", if parameter.is_required { "" } else { "?" });
        }
        if let Some(shape) = &self.others {
            let known: Vec<String> = self.parameters.iter().map(|known| escaped(&known.name)).collect();
            let (mut forms, mut shapes) = (Vec::new(), String::new());
            for (of, middle, shape) in self.forms(shape) {
                // One lexeme with the name in it, which is none of those above.
                let lexeme = format!("{}_OTHER{}", name.to_uppercase(), of.to_uppercase());
                let (open, middle) = (escaped(open), escaped(middle));
                let but = match known.is_empty() {
                    true => String::new(),
                    false => format!(" & ~/{open}({}){middle}/", known.join("|")),
                };
                let _ = writeln!(shapes, "{lexeme}: /{open}[a-zA-Z0-9_.\\-]{{1,64}}{middle}/{but}");
                forms.push(format!("{lexeme} {name}_other{of}_value {rest}"));
                shape.write(&format!("{name}_other{of}_value"), &self.tags, &mut shapes);
            }
            let _ = write!(values, "{name}_other: {}\n{shapes}", forms.join(" | "));
            let _ = write!(row, " {name}_other*");
        }
        let row = if row.is_empty() { " \"\"" } else { &row };
        let _ = write!(rules, "{name}:{row}\n{values}");
    }

    /// The signs that stand between a name and a value of `shape`, what of it each is followed by, and a word
    /// for the rules of that.
    fn forms(&self, shape: &Shape) -> Vec<(&'static str, &str, Shape)> {
        let behind_name = self.tags.behind_name.as_str();
        let Some(before_json) = &self.tags.before_json else { return vec![("", behind_name, shape.clone())] };
        let (texts, others) = shape.split();
        let forms = [("", behind_name, texts), ("_json", before_json.as_str(), others)];
        forms.into_iter().filter(|(.., shape)| shape.kinds() != ValueKinds::default()).collect()
    }
}

struct Reader<'a> {
    shapes: ShapeReader<'a>,
    tags: &'a Tags,
    strictness: Strictness,
    left_out: Vec<SchemaError>,
    parameters: Vec<Parameter>,
}

impl<'a> Reader<'a> {
    fn leave_out(&mut self, error: SchemaError) -> Result<(), SchemaError> {
        match self.strictness {
            Strictness::Whole => Err(error),
            Strictness::Possible => {
                self.left_out.push(error);
                Ok(())
            }
        }
    }

    /// What a value may be; any, where its schema cannot be followed and need not be.
    fn shape(&mut self, schema: &'a Value, path: &mut Vec<String>) -> Result<Shape, SchemaError> {
        match self.shapes.shape(schema, path) {
            Ok(shape) => Ok(shape),
            Err(error) => self.leave_out(error).map(|()| Shape::any(self.tags)),
        }
    }

    fn declared(
        &mut self,
        properties: impl Iterator<Item = (&'a String, &'a Value)>,
        required: &[&str],
    ) -> Result<(), SchemaError> {
        for (name, schema) in properties {
            let mut path = vec!["properties".to_owned(), name.clone()];
            let is_required = required.contains(&name.as_str());
            match check_name(name, &path) {
                Ok(()) => {
                    let shape = self.shape(schema, &mut path)?;
                    self.parameters.push(Parameter { name: name.clone(), shape, is_required });
                }
                // What is required cannot be left out.
                Err(error) if is_required => return Err(error),
                Err(error) => self.leave_out(error)?,
            }
        }
        Ok(())
    }

    /// Parameters that are required and nothing else is said of.
    fn undeclared(
        &mut self,
        required: &[&str],
        words: &Map<String, Value>,
        others: Option<&Shape>,
    ) -> Result<(), SchemaError> {
        let path = ["required".to_owned()];
        for name in required {
            if self.parameters.iter().any(|known| known.name == *name) {
                continue;
            }
            check_name(name, &path)?;
            if words.get("additionalProperties") == Some(&Value::Bool(false)) {
                let reason = format!("`{name:.60}` is required, and there may be no such parameter");
                return Err(SchemaError::at(&path, reason));
            }
            let shape = others.cloned().unwrap_or_else(|| Shape::any(self.tags));
            self.parameters.push(Parameter { name: (*name).to_owned(), shape, is_required: true });
        }
        Ok(())
    }
}

/// A name that stands as it is between the signs around it.
fn check_name(name: &str, path: &[String]) -> Result<(), SchemaError> {
    let is_plain = |c: char| !c.is_control() && !"<>\"'=&".contains(c);
    if !name.is_empty() && name.len() <= 256 && name.trim() == name && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(SchemaError::at(path, "the model's template writes names into tags, and this one cannot stand there"))
}
