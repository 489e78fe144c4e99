//! Lists of tools, from field to definitions, in the two forms that dialects have: with a function below each
//! tool, or with its words in the tool itself.

use serde_json::Value;

use crate::fields::{BadParam, Fields, check_count};
use crate::generate::ToolDefinition;
use crate::table::Table;
use crate::tools::{
    HostedTools, LONG_NAME_LEN_MAX, TOOLS_MAX, check_distinct, check_function, check_name, check_parameters,
    definition, no_parameters, shown_to_the_model,
};

/// Reads `tools` with a function below each; templates print them as they were sent.
pub fn take_nested_tools(
    fields: &mut Fields,
    table: Table,
    needs_type: bool,
    name_len_max: usize,
) -> Result<Vec<ToolDefinition>, BadParam> {
    let tools: Vec<Value> = fields.take("tools", "an array of tools")?.unwrap_or_default();
    check_count("tools", "tools", tools.len(), TOOLS_MAX)?;
    let mut definitions = Vec::new();
    for (i, tool) in tools.into_iter().enumerate() {
        let definition = shown_to_the_model(&tool);
        let mut fields = Fields::new(tool, &format!("tools[{i}]"))?;
        let kind: Option<String> = fields.take("type", "a string")?;
        match kind {
            Some(kind) => check_function(fields.name("type"), &kind)?,
            None if needs_type => return Err(BadParam::missing(fields.name("type"))),
            None => {}
        }
        let name = fields.name("function");
        let function = fields.take_value("function").ok_or_else(|| BadParam::missing(&name))?;
        table.check(&mut fields, "tools[].")?;
        fields.finish()?;
        let mut function = Fields::new(function, &name)?;
        let (name_field, parameters_field) = (function.name("name"), function.name("parameters"));
        let name: String = function.take_required("name", "a string")?;
        check_name(&name_field, &name, name_len_max)?;
        let _: Option<String> = function.take("description", "a string")?;
        let is_strict = function.take("strict", "true or false")?.unwrap_or(false);
        let parameters = function.take_value("parameters").unwrap_or_else(no_parameters);
        table.check(&mut function, "tools[].function.")?;
        function.finish()?;
        check_parameters(&parameters_field, &parameters)?;
        definitions.push(ToolDefinition { name, definition, parameters, is_strict });
    }
    check_distinct(&definitions, |i| format!("tools[{i}].function.name"))?;
    Ok(definitions)
}

/// The functions of a list of tools, and those that run at their vendor. `hosted_kind` takes the type of a
/// tool and gives it if such a one is not a function; `why` says of these why they are refused.
pub(crate) fn functions_and_hosted(
    listed: Vec<Value>,
    hosted_kind: impl Fn(&mut Fields) -> Result<Option<String>, BadParam>,
    why: &str,
    function: impl Fn(Fields) -> Result<ToolDefinition, BadParam>,
) -> Result<(Vec<ToolDefinition>, HostedTools), BadParam> {
    check_count("tools", "tools", listed.len(), TOOLS_MAX)?;
    let (mut tools, mut places, mut hosted) = (Vec::new(), Vec::new(), HostedTools::default());
    for (i, tool) in listed.into_iter().enumerate() {
        let path = format!("tools[{i}]");
        let mut fields = Fields::new(tool, &path)?;
        let Some(kind) = hosted_kind(&mut fields)? else {
            tools.push(function(fields)?);
            places.push(path);
            continue;
        };
        let message =
            format!("tools of type `{kind:.40}` {why}; the setting `leave_out_hosted_tools` leaves them out");
        let kind = kind.chars().take(40).collect();
        hosted.add(kind, BadParam::unsupported(fields.name("type"), message));
    }
    check_distinct(&tools, |i| format!("{}.name", places[i]))?;
    Ok((tools, hosted))
}

/// A function whose words stand in the tool itself, its parameters' schema in this field. Without one it is
/// `absent`, or refused.
pub(crate) fn flat_function(
    mut fields: Fields,
    table: Table,
    schema: &str,
    absent: Option<Value>,
) -> Result<ToolDefinition, BadParam> {
    let (name_field, schema_field) = (fields.name("name"), fields.name(schema));
    let name: String = fields.take_required("name", "a string")?;
    check_name(&name_field, &name, LONG_NAME_LEN_MAX)?;
    let description = fields.take("description", "a string")?;
    let is_strict = fields.take("strict", "true or false")?.unwrap_or(false);
    let schema = fields.take_value(schema).or(absent).ok_or_else(|| BadParam::missing(&schema_field))?;
    check_parameters(&schema_field, &schema)?;
    table.check(&mut fields, "tools[].")?;
    fields.finish()?;
    Ok(definition(name, description, schema, is_strict))
}
