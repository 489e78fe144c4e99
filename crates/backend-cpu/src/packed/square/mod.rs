//! Small squares turned around: rows become columns.

#[cfg(not(target_arch = "x86_64"))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod sse2;

#[cfg(not(target_arch = "x86_64"))]
pub(super) use plain::{halves, words};
#[cfg(target_arch = "x86_64")]
pub(super) use sse2::{halves, words};

#[cfg(test)]
mod tests {
    #[test]
    fn rows_become_columns() {
        let words = super::words(std::array::from_fn(|r| std::array::from_fn(|c| (10 * r + c) as u32)));
        for (r, row) in words.iter().enumerate() {
            assert_eq!(*row, std::array::from_fn(|c| (10 * c + r) as u32));
        }
        let halves = super::halves(std::array::from_fn(|r| std::array::from_fn(|c| (10 * r + c) as u16)));
        for (r, row) in halves.iter().enumerate() {
            assert_eq!(*row, std::array::from_fn(|c| (10 * c + r) as u16));
        }
    }
}
