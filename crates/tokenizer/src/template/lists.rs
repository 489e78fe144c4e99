//! Lists that grow: `set _ = ids.append(id)`, as templates write what Python does. The engine's own lists do
//! not change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::Budget;

/// A list that was written as `[]`.
#[derive(Debug)]
pub(crate) struct GrowingList {
    items: Mutex<Vec<Value>>,
    budget: Budget,
}

/// A list without items, which can get some.
pub(crate) fn growing_list(budget: &Budget) -> Value {
    Value::from_object(GrowingList { items: Mutex::default(), budget: budget.clone() })
}

impl GrowingList {
    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, item: &Value) -> Result<Value, Error> {
        let item = self.budget.settle(item.clone())?;
        // A list that grows inside of others would make them deeper than anything that was weighed.
        if holds_growing_list(&item)? {
            return Err(invalid("append: the item is a list that can grow, or has one in it"));
        }
        self.items().push(item);
        Ok(Value::from(()))
    }

    fn pop(&self, index: i64) -> Result<Value, Error> {
        let mut items = self.items();
        let from_end = i64::try_from(items.len()).unwrap_or(i64::MAX).saturating_add(index);
        let at = usize::try_from(if index < 0 { from_end } else { index }).unwrap_or(usize::MAX);
        if at >= items.len() {
            return Err(invalid("pop: the list has no such item"));
        }
        Ok(items.remove(at))
    }
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Whether a value, which was weighed and so is not too deep, is such a list or has one in it.
fn holds_growing_list(value: &Value) -> Result<bool, Error> {
    if value.downcast_object_ref::<GrowingList>().is_some() {
        return Ok(true);
    }
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && value.kind() != ValueKind::Seq {
        return Ok(false);
    }
    for item in value.try_iter()? {
        let item = if is_map { value.get_item(&item)? } else { item };
        if holds_growing_list(&item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Object for GrowingList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        match (method, arguments) {
            ("append", [item]) => self.append(item),
            ("pop", []) => self.pop(-1),
            ("pop", [index]) => self.pop(i64::try_from(index.clone())?),
            // The methods of all lists.
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
