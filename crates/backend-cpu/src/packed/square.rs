//! Small squares turned around: rows become columns.

#[cfg(any(not(target_arch = "x86_64"), test))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod sse2;

#[cfg(not(target_arch = "x86_64"))]
pub(super) use plain::{halves, words};
#[cfg(target_arch = "x86_64")]
pub(super) use sse2::{halves, words};

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn rows_become_columns() {
        let rows = std::array::from_fn(|r| std::array::from_fn(|c| (10 * r + c) as u32));
        let columns = std::array::from_fn(|r| std::array::from_fn(|c| (10 * c + r) as u32));
        assert_eq!((super::words(rows), plain::words(rows)), (columns, columns));
        let rows = std::array::from_fn(|r| std::array::from_fn(|c| (10 * r + c) as u16));
        let columns = std::array::from_fn(|r| std::array::from_fn(|c| (10 * c + r) as u16));
        assert_eq!((super::halves(rows), plain::halves(rows)), (columns, columns));
    }
}
