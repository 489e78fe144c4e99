//! Counts what the engine makes of alternatives before it is asked: it copies all that stands beside them,
//! behind references too, into each.
//!
//! It reads what a reference leads to once, as that stands, and leaves a reference that stands alone where it
//! is. So unions of unions by reference cost what is written, however deep they go. What is merged is counted
//! as it is merged: a reference with words beside it, and whatever two schemas that are laid over one another
//! say of the same property.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use serde_json::{Map, Value};

/// Most bytes of plain values and names that merging alternatives with what stands beside them may make. A
/// list of values that stands alone is one alternation of literals in the engine, as long as its text.
const COPIED_BYTES_MAX: usize = 32 << 20;
/// Most copies of places that merging alternatives with what stands beside them may make.
const MERGED_MAX: usize = 250_000;
/// Most schemas that the engine merges with another one before it gives up: `max_size` of `llguidance`.
const INTERSECTIONS_MAX: usize = 50_000;
/// Most places and names that are looked at to count that, a hundred times as many as a schema has places: of
/// schemas that refer to each other each is counted anew.
const LOOKED_AT_MAX: usize = 2_000_000;
/// What any value takes beside its text.
const VALUE_BYTES: usize = 32;
/// Stands for the items of an array among the names of properties.
const ITEMS: &str = "";

/// The count of one schema.
pub(crate) struct Merge<'a> {
    root: &'a Value,
    /// What references lead to.
    targets: HashMap<&'a str, Target<'a>>,
    /// Targets that have to be counted before.
    unknown: BTreeSet<&'a str>,
    /// How many targets are under way.
    under_way: usize,
    /// The first target under way that what is being counted leads back to.
    rests_on: usize,
    /// Places and names that were looked at.
    looked_at: usize,
    /// Places that are copies.
    copies: usize,
    /// The same of bytes of plain values and names.
    copied_bytes: usize,
}

/// Places of a schema once it is merged, for each alternative, and its alternatives.
type Size<'a> = (usize, Alternatives<'a>);

/// Names of properties that a schema has a schema for.
type Names<'a> = Option<Rc<BTreeSet<&'a str>>>;

/// What is known of what a reference leads to.
enum Target<'a> {
    /// It is being counted, as the so-manieth of those under way.
    UnderWay(usize),
    /// It is counted. Where it leads back to a target that was under way then, that was not gone into: this
    /// holds only until that one is counted.
    Counted { size: Size<'a>, rests_on: usize },
}

/// What is counted rests on no target under way.
const ON_NOTHING: usize = usize::MAX;

/// What a schema is merged into. All but their number and what they name are sums over them.
#[derive(Clone, Default)]
struct Alternatives<'a> {
    count: usize,
    /// Bytes of plain values and names.
    bytes: usize,
    /// Names, and alternatives, of what stands inside of their values. For each of them the engine may copy
    /// what another schema has in the same place.
    choices: usize,
    /// Bytes of the largest value inside.
    largest: usize,
    /// Bytes of what references inside lead to: copied where another schema has anything in the same place.
    referred: usize,
    /// What any of them has inside.
    names: Names<'a>,
    /// Whether any of them has a schema for names that it does not list.
    is_open: bool,
}

impl<'a> Alternatives<'a> {
    const ONE: Self =
        Self { count: 1, bytes: 0, choices: 0, largest: 0, referred: 0, names: None, is_open: false };

    /// What values that are listed are merged into.
    fn of_values(values: &'a [Value]) -> Self {
        let names: BTreeSet<&'a str> = values.iter().flat_map(names).collect();
        Self {
            count: values.len().max(1),
            bytes: values.iter().map(weight).sum(),
            choices: values.iter().map(inner_values).sum(),
            names: (!names.is_empty()).then(|| Rc::new(names)),
            ..Self::ONE
        }
    }

    /// Each of these with each of the others.
    fn beside(self, other: Self) -> Self {
        let each = |of: fn(&Self) -> usize| {
            let (own, others) =
                (of(&self).saturating_mul(other.count), of(&other).saturating_mul(self.count));
            own.saturating_add(others)
        };
        let inside = self.copied_for(&other).saturating_add(other.copied_for(&self));
        Self {
            count: self.count.saturating_mul(other.count),
            bytes: each(|all| all.bytes).saturating_add(inside),
            choices: each(|all| all.choices),
            largest: each(|all| all.largest),
            referred: each(|all| all.referred),
            is_open: self.is_open || other.is_open,
            names: joined(self.names, other.names),
        }
    }

    /// These or the others.
    fn or(self, other: Self) -> Self {
        let sum = |of: fn(&Self) -> usize| of(&self).saturating_add(of(&other));
        Self {
            count: sum(|all| all.count),
            bytes: sum(|all| all.bytes),
            choices: sum(|all| all.choices),
            largest: sum(|all| all.largest),
            referred: sum(|all| all.referred),
            is_open: self.is_open || other.is_open,
            names: joined(self.names, other.names),
        }
    }

    /// Bytes inside of these that the engine copies because the others have something in the same place.
    fn copied_for(&self, other: &Self) -> usize {
        if other.choices == 0 || !self.meets(other) {
            return 0;
        }
        let of_choices = other.choices.min(INTERSECTIONS_MAX).saturating_mul(self.largest);
        let of_references = self.referred.saturating_mul(other.count);
        of_choices.saturating_add(of_references.min(INTERSECTIONS_MAX.saturating_mul(self.largest)))
    }

    /// Whether the others may have something in the same place.
    fn meets(&self, other: &Self) -> bool {
        let have_same = match (&self.names, &other.names) {
            (Some(own), Some(others)) => !own.is_disjoint(others),
            _ => false,
        };
        have_same || self.is_open || other.is_open
    }

    /// What a reference to these is, where it is not merged.
    fn behind_reference(self) -> Self {
        Self {
            choices: self.choices.saturating_add(self.count),
            largest: self.largest.max(self.bytes),
            referred: self.referred.saturating_add(self.bytes),
            ..Self::ONE
        }
    }

    /// How many names are looked at where these are joined with others.
    fn compared_with(&self, other: &Self) -> usize {
        match (&self.names, &other.names) {
            (Some(own), Some(others)) => own.len() + others.len(),
            _ => 0,
        }
    }
}

fn joined<'a>(own: Names<'a>, others: Names<'a>) -> Names<'a> {
    match (own, others) {
        (Some(mut own), Some(others)) => {
            Rc::make_mut(&mut own).extend(others.iter().copied());
            Some(own)
        }
        (own, others) => own.or(others),
    }
}

/// What is laid over one another in one schema, as it comes.
struct Overlay<'a> {
    all: Alternatives<'a>,
    /// Bytes of it that the schema itself has.
    written: usize,
    /// Names that were compared.
    compared: usize,
}

impl<'a> Overlay<'a> {
    fn add(&mut self, part: Alternatives<'a>, is_written_here: bool) {
        self.written = self.written.saturating_add(if is_written_here { part.bytes } else { 0 });
        self.compared += self.all.compared_with(&part);
        self.all = std::mem::take(&mut self.all).beside(part);
    }
}

impl<'a> Merge<'a> {
    pub(crate) fn of(schema: &'a Value) -> Self {
        let mut merge = Self {
            root: schema,
            targets: HashMap::new(),
            unknown: BTreeSet::new(),
            under_way: 0,
            rests_on: ON_NOTHING,
            looked_at: 0,
            copies: 0,
            copied_bytes: 0,
        };
        // Not by recursion: a chain of references is longer than a stack bears.
        let mut left: Vec<Option<&'a str>> = vec![None];
        while let Some(next) = left.last().copied().filter(|_| merge.looked_at <= LOOKED_AT_MAX) {
            if merge.count(next) {
                left.pop();
            } else {
                left.extend(std::mem::take(&mut merge.unknown).into_iter().map(Some));
            }
        }
        merge
    }

    /// Counts the schema itself, or what a reference leads to; false if others have to be counted before.
    fn count(&mut self, target: Option<&'a str>) -> bool {
        let (root, before) = (self.root, (self.copies, self.copied_bytes));
        self.rests_on = ON_NOTHING;
        let Some(target) = target else {
            self.size(root, false);
            return self.is_all_known(before);
        };
        let turn = match self.targets.get(target) {
            Some(Target::Counted { .. }) => return true,
            Some(Target::UnderWay(turn)) => *turn,
            None => {
                self.targets.insert(target, Target::UnderWay(self.under_way));
                self.under_way += 1;
                self.under_way - 1
            }
        };
        let found = root.pointer(target.get(1..).unwrap_or_default());
        let size = found.map_or((1, Alternatives::ONE), |schema| self.referred(schema));
        if !self.is_all_known(before) {
            return false;
        }
        let (rests_on, is_lasting) = (self.rests_on, self.rests_on >= turn);
        self.under_way = turn;
        // What rests on it is counted again where it lasts, and else rests on what it rests on itself.
        self.targets.retain(|_, known| match known {
            Target::Counted { rests_on: on, .. } if *on >= turn && *on != ON_NOTHING => {
                *on = rests_on;
                !is_lasting
            }
            _ => true,
        });
        if !is_lasting {
            (self.copies, self.copied_bytes) = before;
        }
        let rests_on = if is_lasting { ON_NOTHING } else { rests_on };
        self.targets.insert(target, Target::Counted { size, rests_on });
        true
    }

    /// Whether all was known that was just counted; if not, that was for nothing.
    fn is_all_known(&mut self, before: (usize, usize)) -> bool {
        if !self.unknown.is_empty() {
            (self.copies, self.copied_bytes) = before;
        }
        self.unknown.is_empty()
    }

    /// Why the engine does not get it, if it makes too much of it.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.looked_at > LOOKED_AT_MAX {
            return Some(
                "too many of its references lead back to each other; refer to fewer schemas".to_owned(),
            );
        }
        if self.copies > MERGED_MAX {
            return Some(format!(
                "its alternatives, each with all that stands beside them, make more than {MERGED_MAX} places; list fewer, or move what \
                 they share into a property"
            ));
        }
        (self.copied_bytes > COPIED_BYTES_MAX).then(|| {
            "its values and names, copied into each of the alternatives beside them, would take too much memory; list fewer alternatives, \
             or make the values smaller"
                .to_owned()
        })
    }

    /// What a schema is for those who merge it. The engine itself makes of it, once, what it is where it
    /// stands alone, and only that is added to what was made.
    fn referred(&mut self, schema: &'a Value) -> Size<'a> {
        if schema.as_object().is_some_and(is_laid_over) {
            return self.size(schema, true);
        }
        self.size(schema, false);
        let before = (self.copies, self.copied_bytes);
        let size = self.size(schema, true);
        (self.copies, self.copied_bytes) = before;
        size
    }

    fn size(&mut self, schema: &'a Value, is_merged: bool) -> Size<'a> {
        self.looked_at = self.looked_at.saturating_add(1);
        // It is refused in any case: the rest of one schema may take as long as very many others.
        let is_to_be_read = self.looked_at <= LOOKED_AT_MAX;
        let Some(words) = schema.as_object().filter(|_| is_to_be_read) else { return (1, Alternatives::ONE) };
        let is_merged = is_merged || is_laid_over(words);
        let (mut beside, mut largest) = (1_usize, 0);
        let mut own = Alternatives::ONE;
        let mut overlay = Overlay { all: Alternatives::ONE, written: 0, compared: 0 };
        for (word, value) in words {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            match word.as_str() {
                "$ref" => {
                    let (places, part) = self.target(value.as_str().unwrap_or_default());
                    if is_merged {
                        beside = beside.saturating_add(places);
                        overlay.add(part, false);
                    } else {
                        own = part.behind_reference();
                    }
                }
                "anyOf" | "oneOf" => {
                    let (places, part) = self.either(items, is_merged);
                    largest = largest.max(places);
                    overlay.add(part, true);
                }
                "allOf" => {
                    for item in items {
                        let (places, part) = self.size(item, true);
                        beside = beside.saturating_add(places);
                        overlay.add(part, true);
                        self.looked_at = self.looked_at.saturating_add(std::mem::take(&mut overlay.compared));
                    }
                }
                "const" => overlay.add(Alternatives::of_values(std::slice::from_ref(value)), true),
                "enum" => overlay.add(Alternatives::of_values(items), true),
                "$defs" | "definitions" => {
                    for schema in value.as_object().into_iter().flat_map(Map::values) {
                        self.size(schema, false);
                    }
                }
                // The engine knows the other names, and makes one schema of these.
                "prefixItems" | "properties" | "items" | "additionalProperties" => {
                    beside = beside.saturating_add(self.inside(word, value, &mut own));
                }
                "patternProperties" => {
                    let mut part = Alternatives::ONE;
                    beside = beside.saturating_add(self.inside(word, value, &mut part));
                    overlay.add(part, true);
                }
                "pattern" | "required" => {
                    overlay.add(Alternatives { bytes: weight(value), ..Alternatives::ONE }, true);
                }
                // Types and bounds become one.
                _ => {}
            }
        }
        overlay.add(own, true);
        let Overlay { all, written, compared } = overlay;
        self.looked_at = self.looked_at.saturating_add(compared);
        if is_merged {
            self.copies = self.copies.saturating_add(beside.saturating_mul(all.count - 1));
        }
        self.copied_bytes = self.copied_bytes.saturating_add(all.bytes.saturating_sub(written));
        (beside.saturating_add(largest), all)
    }

    /// The largest of some alternatives, and all of them.
    fn either(&mut self, items: &'a [Value], is_merged: bool) -> Size<'a> {
        let (mut largest, mut either) = (0, Alternatives::default());
        for item in items {
            let (places, part) = self.size(item, is_merged);
            largest = largest.max(places);
            self.looked_at = self.looked_at.saturating_add(either.compared_with(&part));
            either = either.or(part);
        }
        (largest, Alternatives { count: either.count.max(1), ..either })
    }

    /// Places of what stands inside of a schema's values, where it is merged by itself; what else is to be
    /// known of it is added to the schema's own.
    fn inside(&mut self, word: &str, value: &'a Value, own: &mut Alternatives<'a>) -> usize {
        let (schemas, names): (Vec<&'a Value>, BTreeSet<&'a str>) = match (word, value) {
            ("prefixItems", Value::Array(items)) => (items.iter().collect(), BTreeSet::from([ITEMS])),
            ("properties" | "patternProperties", Value::Object(named)) => {
                (named.values().collect(), named.keys().map(String::as_str).collect())
            }
            ("items", value) => (vec![value], BTreeSet::from([ITEMS])),
            _ => (vec![value], BTreeSet::new()),
        };
        let says_something = value.as_object().is_some_and(|words| !words.is_empty());
        own.is_open |= says_something && matches!(word, "additionalProperties" | "patternProperties");
        own.bytes = own.bytes.saturating_add(names.iter().map(|name| name.len()).sum());
        own.names = joined(own.names.take(), (!names.is_empty()).then(|| Rc::new(names)));
        let mut places = 0_usize;
        for schema in schemas {
            let (size, all) = self.size(schema, false);
            places = places.saturating_add(size.saturating_mul(all.count));
            let bytes = all.bytes.saturating_add(VALUE_BYTES);
            own.bytes = own.bytes.saturating_add(bytes);
            own.choices = own.choices.saturating_add(all.choices).saturating_add(all.count);
            own.largest = own.largest.max(all.largest).max(bytes);
            own.referred = own.referred.saturating_add(all.referred);
        }
        places
    }

    fn target(&mut self, target: &'a str) -> Size<'a> {
        match self.targets.get(target) {
            Some(Target::Counted { size, rests_on }) => {
                self.rests_on = self.rests_on.min(*rests_on);
                size.clone()
            }
            // What leads back to itself is not merged any further.
            Some(Target::UnderWay(turn)) => {
                self.rests_on = self.rests_on.min(*turn);
                (1, Alternatives::ONE)
            }
            None => {
                self.unknown.insert(target);
                (1, Alternatives::ONE)
            }
        }
    }
}

/// Whether several of a schema's words hold for one value.
fn is_laid_over(words: &Map<String, Value>) -> bool {
    let asserts = |word: &&String| !matches!(word.as_str(), "$schema" | "$defs" | "definitions");
    let listed = words.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    listed > 1 || words.keys().filter(asserts).count() > 1
}

/// What a plain value has inside.
fn names(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => fields.keys().map(String::as_str).collect(),
        Value::Array(_) => vec![ITEMS],
        _ => Vec::new(),
    }
}

/// How many values a plain value has inside.
fn inner_values(value: &Value) -> usize {
    let with_own = |value: &Value| 1 + inner_values(value);
    match value {
        Value::Array(items) => items.iter().map(with_own).sum(),
        Value::Object(fields) => fields.values().map(with_own).sum(),
        _ => 0,
    }
}

/// About what a plain value takes.
fn weight(value: &Value) -> usize {
    let inside: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, field)| name.len() + weight(field)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE_BYTES + inside
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Some hundred kilobytes that would have a hundred million names compared.
    #[test]
    fn one_schema_with_very_much_laid_over_one_another_is_given_up_in_the_middle() {
        let properties: Map<String, Value> = (0..5_000).map(|i| (format!("p{i}"), json!({}))).collect();
        let refers = json!({"$ref": "#/$defs/large"});
        for word in ["allOf", "anyOf"] {
            let defs = json!({"large": {"properties": properties}});
            let schema = json!({"type": "object", word: vec![&refers; 10_000], "$defs": defs});
            let merge = Merge::of(&schema);
            let refusal = merge.refusal().unwrap_or_default();
            assert!(refusal.contains("refer to fewer schemas"), "{word}: {refusal}");
            assert!(merge.looked_at < 2 * LOOKED_AT_MAX, "{word}: {}", merge.looked_at);
        }
    }
}
