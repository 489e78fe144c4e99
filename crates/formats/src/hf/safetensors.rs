//! The safetensors container: eight bytes of length, a JSON header, then the bytes of the tensors.

use std::fmt;
use std::ops::Range;

use exo_types::{DType, list};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::SafetensorsError;

/// The format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const DIMENSIONS_MAX: usize = 8;
const TENSORS_MAX: usize = 100_000;

/// One tensor of a header. `range` is from the start of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) range: Range<u64>,
}

/// A parsed header.
pub(super) struct Header {
    pub(super) head_bytes: u64,
    pub(super) entries: Vec<Entry>,
}

/// Parses the header at the start of `bytes`, which is the whole file (its data may be holes).
pub(super) fn parse(bytes: &[u8]) -> Result<Header, SafetensorsError> {
    let file_bytes = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsError::TooShort { file_bytes });
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > HEADER_BYTES_MAX || header_bytes > rest.len() as u64 {
        return Err(SafetensorsError::HeaderLength { header_bytes, file_bytes, max_bytes: HEADER_BYTES_MAX });
    }
    // A copy: the parser looks at the text twice, and the file may change under us.
    let text = rest[..header_bytes as usize].to_vec();
    let listed: Listed = serde_json::from_slice(&text).map_err(SafetensorsError::Syntax)?;
    let head_bytes = 8 + header_bytes;
    let place = |raw: (String, Raw)| place(raw.0, raw.1, head_bytes, file_bytes);
    let entries = listed.0.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
    check_overlaps(&entries)?;
    Ok(Header { head_bytes, entries })
}

fn place(name: String, raw: Raw, head_bytes: u64, file_bytes: u64) -> Result<Entry, SafetensorsError> {
    let error =
        |problem: String| SafetensorsError::Tensor { tensor: name.chars().take(256).collect(), problem };
    let dtype = match raw.dtype.as_str() {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        other => {
            let shown: String = other.chars().take(20).collect();
            return Err(error(format!("dtype is `{shown}`, supported are F32, F16 and BF16")));
        }
    };
    if raw.shape.contains(&0) {
        return Err(error(format!("shape {:?} has a dimension of 0", raw.shape)));
    }
    let elements = raw.shape.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
    let bytes = elements.and_then(|n| dtype.bytes_of(n));
    let [start, end] = raw.offsets;
    if bytes.is_none() || end.checked_sub(start) != bytes {
        return Err(error(format!(
            "data_offsets {start}..{end} do not hold {dtype} of shape {:?}",
            raw.shape
        )));
    }
    let (Some(start), Some(end)) = (head_bytes.checked_add(start), head_bytes.checked_add(end)) else {
        return Err(error(format!("data_offsets {start}..{end} overflow")));
    };
    if end > file_bytes {
        return Err(error(format!(
            "ends at byte {end}, the file has {file_bytes}: it is truncated or damaged"
        )));
    }
    if !start.is_multiple_of(dtype.block_bytes()) {
        return Err(error(format!("starts at byte {start}, not a multiple of {}", dtype.block_bytes())));
    }
    Ok(Entry { name, dtype, shape: raw.shape, range: start..end })
}

fn check_overlaps(entries: &[Entry]) -> Result<(), SafetensorsError> {
    let mut by_start: Vec<&Entry> = entries.iter().collect();
    by_start.sort_by_key(|e| e.range.start);
    match by_start.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        None => Ok(()),
        Some(pair) => Err(SafetensorsError::Tensor {
            tensor: pair[1].name.clone(),
            problem: format!("lies within tensor `{}`", pair[0].name),
        }),
    }
}

/// The header's entries in its order. Built by hand so that a name that appears twice is an error and a shape
/// of a million dimensions is refused while it is read.
struct Listed(Vec<(String, Raw)>);

#[derive(serde::Deserialize)]
struct Raw {
    dtype: String,
    #[serde(deserialize_with = "list::<_, _, DIMENSIONS_MAX>")]
    shape: Vec<u64>,
    #[serde(rename = "data_offsets")]
    offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Listed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
                let mut entries = Vec::new();
                let mut names = std::collections::BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if entries.len() == TENSORS_MAX {
                        return Err(de::Error::custom(format!("more than {TENSORS_MAX} tensors")));
                    }
                    if !names.insert(name.clone()) {
                        let shown: String = name.chars().take(256).collect();
                        return Err(de::Error::custom(format!("tensor `{shown}` appears twice")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Listed(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(header: &str, data_bytes: usize) -> Result<usize, String> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data_bytes, 0);
        let mut text = String::new();
        parse(&file).map(|h| h.entries.len()).map_err(|e| {
            let mut next: Option<&dyn std::error::Error> = Some(&e);
            while let Some(error) = next {
                text += &format!("{error}. ");
                next = error.source();
            }
            text
        })
    }

    fn one(fields: &str) -> String {
        let text = format!(r#"{{"a":{{{fields}}}}}"#);
        let padding = " ".repeat(text.len().next_multiple_of(8) - text.len());
        text + &padding
    }

    #[test]
    fn a_valid_header_lists_its_tensors() {
        assert_eq!(check(&one(r#""dtype":"F32","shape":[2,3],"data_offsets":[0,24]"#), 24), Ok(1));
        assert_eq!(check("{}", 0), Ok(0));
    }

    #[test]
    fn impossible_tensors_are_errors_that_name_them() {
        let cases = [
            (r#""dtype":"I64","shape":[1],"data_offsets":[0,8]"#, "`I64`"),
            (r#""dtype":"F32","shape":[2,3],"data_offsets":[0,20]"#, "do not hold"),
            (r#""dtype":"F32","shape":[2,3],"data_offsets":[24,0]"#, "do not hold"),
            (r#""dtype":"F32","shape":[0],"data_offsets":[0,0]"#, "dimension of 0"),
            (r#""dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]"#, "do not hold"),
            (r#""dtype":"F32","shape":[8],"data_offsets":[0,32]"#, "truncated"),
            (r#""dtype":"F32","shape":[1],"data_offsets":[2,6]"#, "not a multiple of 4"),
            (r#""dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]"#, "at most 8 elements"),
            (
                r#""dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]"#,
                "do not hold",
            ),
        ];
        for (fields, expected) in cases {
            let error = check(&one(fields), 24).unwrap_err();
            assert!(error.contains(expected), "{fields}: {error}");
        }
    }

    #[test]
    fn hostile_headers_are_errors() {
        let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        assert!(check(twice, 8).unwrap_err().contains("twice"));
        // `serde_json` skips what nobody asked for without recursion, and refuses to recurse 128 levels deep.
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(check(&format!(r#"{{"__metadata__":{}}}"#, deep(10_000)), 0), Ok(0));
        assert!(check(&format!(r#"{{"a":{{"shape":{}}}}}"#, deep(10_000)), 0).is_err());
        assert!(parse(&u64::MAX.to_le_bytes()).is_err());
        assert!(parse(&[0; 7]).is_err());
    }

    proptest! {
        /// Whatever bytes a file has, its header is a list of tensors or an error.
        #[test]
        fn no_header_makes_the_parser_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            fields in "(\"(dtype|shape|data_offsets)\":(\"F16\"|[0-9]{1,20}|\\[[0-9,]{0,30}\\]),?){0,4}",
        ) {
            let _ = parse(&bytes);
            let _ = check(&one(&fields), 24);
            let _ = check(&one(fields.trim_end_matches(',')), 24);
        }
    }
}
