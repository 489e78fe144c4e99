//! The tools of a request as parts of a grammar: what each call may be, and what of a schema cannot be
//! enforced.

use std::collections::BTreeMap;

use exo_api::{GenerateError, RequestPart, ToolDefinition, Tools};
use exo_constraint::{
    Arguments, CallShape, Calls, Compiler, Part, Schema, SchemaError, Strictness, TaggedArguments, Tags,
    TemplatePiece, ToolSearch,
};
use exo_tokenizer::calls::{CallFormat, CallPart, ParameterFormat, ToolParameters, ValueKinds};
use serde_json::Value;

use crate::library::OpenModel;
use crate::refusals::{invalid, refused_schema};
use crate::signs::pieces;

/// The tools that may be called.
pub struct ToolShapes<'a> {
    tools: &'a Tools,
    tags: Option<Tags>,
    shapes: Vec<ToolShape<'a>>,
}

struct ToolShape<'a> {
    /// Its place in the request.
    index: usize,
    definition: &'a ToolDefinition,
    /// So much of its schema as is enforced.
    schema: Value,
    call: CallShape,
}

impl<'a> ToolShapes<'a> {
    /// Reads the schemas of the tools that may be called, and names what of them is not enforced.
    pub fn read(
        open: &OpenModel,
        format: &CallFormat,
        tools: &'a Tools,
        unenforced: &mut Vec<String>,
    ) -> Result<Self, GenerateError> {
        let tags = format.parameters.as_ref().map(|parameters| tags(open, parameters)).transpose()?;
        let mut shapes = Vec::new();
        for (index, definition) in
            tools.definitions.iter().enumerate().filter(|(_, tool)| tools.allowed.contains(&tool.name))
        {
            let mut name =
                |error: SchemaError| unenforced.push(format!("tool `{}` {error}", definition.name));
            let schema = arguments(index, definition, &mut name)?;
            let written_parts = |parts: &[CallPart]| parts_of(open, parts, &definition.name);
            let (arguments, left_out) = written(&schema, tags.as_ref(), strictness(definition))
                .map_err(|e| invalid(RequestPart::ToolSchema(index), e.to_string()))?;
            left_out.into_iter().for_each(name);
            let call = CallShape {
                head: written_parts(&format.head)?,
                other_head: format
                    .other
                    .as_ref()
                    .map_or(Ok(Vec::new()), |other| written_parts(&other.head))?,
                arguments,
                tail: written_parts(&format.tail)?,
            };
            shapes.push(ToolShape { index, definition, schema, call });
        }
        Ok(Self { tools, tags, shapes })
    }

    /// What calls may be.
    pub fn calls(
        &self,
        open: &OpenModel,
        format: &CallFormat,
        answer: Option<Value>,
    ) -> Result<Calls, GenerateError> {
        Ok(Calls {
            begin: pieces(open, &format.begin)?,
            other_begin: format.other.as_ref().map(|other| pieces(open, &other.begin)).transpose()?,
            between: pieces(open, format.between.as_deref().unwrap_or_default())?,
            end: pieces(open, &format.end)?,
            tools: self.shapes.iter().map(|shape| shape.call.clone()).collect(),
            // With nothing between them, a second call cannot be told from what follows the first.
            is_parallel: self.tools.is_parallel
                && format.between.as_ref().is_some_and(|between| !between.is_empty()),
            is_required: self.tools.is_required,
            answer,
        })
    }

    /// How the arguments of each tool are read, where they stand between tags.
    pub fn parameters(&self) -> BTreeMap<String, ToolParameters> {
        let of_tool = |shape: &ToolShape<'_>| match &shape.call.arguments {
            Arguments::Json(_) => None,
            Arguments::Tagged(tagged) => {
                let (named, others) = tagged.kinds();
                let named = named.into_iter().map(|(name, may)| (name, kinds(may))).collect();
                Some((shape.definition.name.clone(), ToolParameters { named, others: kinds(others) }))
            }
        };
        self.shapes.iter().filter_map(of_tool).collect()
    }

    /// Finds the tools that the engine does not take, and leaves out what it does not take of those that are
    /// not strict: expressions, or else the whole schema.
    pub fn reduce(
        &mut self,
        compiler: &Compiler,
        calls: Calls,
        unenforced: &mut Vec<String>,
    ) -> Result<Calls, GenerateError> {
        let mut search = ToolSearch::new(compiler);
        let listed: Vec<&CallShape> = self.shapes.iter().map(|shape| &shape.call).collect();
        for at in search.suspects(&listed) {
            let shape = &mut self.shapes[at];
            let Some(reason) = search.refusal(&shape.call) else { continue };
            if shape.definition.is_strict {
                let part = RequestPart::ToolSchema(shape.index);
                return Err(refused_schema(compiler, part, &shape.schema, &reason));
            }
            let name = &shape.definition.name;
            let left_out = Schema::drop_patterns(&mut shape.schema, &mut |texts| search.try_texts(texts));
            unenforced.extend(left_out.into_iter().map(|error| format!("tool `{name}` {error}")));
            if let Ok((arguments, _)) = written(&shape.schema, self.tags.as_ref(), Strictness::Possible) {
                shape.call.arguments = arguments;
            }
            if let Some(reason) = search.refusal(&shape.call) {
                unenforced.push(format!("tool `{name}` at `#`: any object is taken, for: {reason}"));
                shape.call.arguments = match &self.tags {
                    None => Arguments::Json(Schema::object().value),
                    Some(tags) => Arguments::Tagged(TaggedArguments::any(tags).into()),
                };
            }
        }
        Ok(Calls { tools: self.shapes.iter().map(|shape| shape.call.clone()).collect(), ..calls })
    }
}

/// Parts of a call of this tool: its name is a text like others.
fn parts_of(open: &OpenModel, parts: &[CallPart], name: &str) -> Result<Vec<Part>, GenerateError> {
    let mut written = Vec::new();
    for part in parts {
        match part {
            CallPart::Text(text) => {
                written.extend(pieces(open, text)?.into_iter().map(|piece| match piece {
                    TemplatePiece::Text(text) => Part::Text(text),
                    TemplatePiece::Control(id) => Part::Control(id),
                }))
            }
            CallPart::Name => written.push(Part::Text(name.to_owned())),
            CallPart::Id(len) => written.push(Part::Id { len: *len }),
            CallPart::Number => written.push(Part::Number),
        }
    }
    Ok(written)
}

fn strictness(tool: &ToolDefinition) -> Strictness {
    if tool.is_strict { Strictness::Whole } else { Strictness::Possible }
}

/// The schema of a tool's arguments: wholly where it is strict, else as much of it as can be enforced.
fn arguments(
    index: usize,
    tool: &ToolDefinition,
    left_out: &mut impl FnMut(SchemaError),
) -> Result<Value, GenerateError> {
    let part = RequestPart::ToolSchema(index);
    let read = Schema::read(&tool.parameters, strictness(tool)).map_err(|e| invalid(part, e.to_string()))?;
    let read = read.closed();
    read.left_out.into_iter().for_each(left_out);
    let mut schema = read.value;
    match schema.get("type") {
        None => schema["type"] = Value::String("object".to_owned()),
        Some(kind) if kind == "object" => {}
        Some(_) => {
            let message = "it must be a schema of an object: arguments have names";
            return Err(invalid(part, message.to_owned()));
        }
    }
    Ok(schema)
}

/// Arguments as the template prints them.
fn written(
    schema: &Value,
    tags: Option<&Tags>,
    strictness: Strictness,
) -> Result<(Arguments, Vec<SchemaError>), SchemaError> {
    match tags {
        None => Ok((Arguments::Json(schema.clone()), Vec::new())),
        Some(tags) => TaggedArguments::read(schema, tags, strictness)
            .map(|(arguments, left_out)| (Arguments::Tagged(arguments.into()), left_out)),
    }
}

fn tags(open: &OpenModel, format: &ParameterFormat) -> Result<Tags, GenerateError> {
    let signs = [&format.open, &format.behind_name, &format.close];
    for sign in signs.into_iter().chain(&format.before_json) {
        if pieces(open, sign)?.iter().any(|piece| matches!(piece, TemplatePiece::Control(_))) {
            let message =
                "this model cannot be given tools: its template writes parameters between control tokens";
            return Err(invalid(RequestPart::Tools, message.to_owned()));
        }
    }
    Ok(Tags {
        open: format.open.clone(),
        behind_name: format.behind_name.clone(),
        before_json: format.before_json.clone(),
        close: format.close.clone(),
        true_word: format.true_word.clone(),
        false_word: format.false_word.clone(),
        null_word: format.null_word.clone(),
    })
}

fn kinds(may: exo_constraint::ValueKinds) -> ValueKinds {
    let exo_constraint::ValueKinds { text, null, boolean, integer, number, structure } = may;
    ValueKinds { text, null, boolean, integer, number, structure }
}
