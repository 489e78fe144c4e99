/// No other system tells a child.
pub fn end_with_parent() {}
