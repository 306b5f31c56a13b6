//! The header parser against the reference implementation, the crate `safetensors`.
//!
//! The input is a whole file. If it begins with `{`, it is also taken as the text of a header,
//! which gets its length and the bytes of data that the text asks for.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use safetensors_core::{ErrorKind, Limits, SafeTensors};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The most data that is added to the text of a header.
const MOST_DATA: u64 = 1 << 16;

/// Checks one input.
pub fn run(input: &[u8]) {
    check(input);
    if input.first() == Some(&b'{') {
        let mut file = (input.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(input);
        let data = data_len(input).filter(|&len| len <= MOST_DATA).unwrap_or(0);
        file.extend((0..data).map(|i| i as u8));
        check(&file);
    }
}

/// Returns the bytes of data that the text of a header asks for, by either implementation.
fn data_len(json: &[u8]) -> Option<u64> {
    let ours = safetensors_core::header::Header::parse_json(json, &Limits::default());
    ours.map(|header| header.data_len()).ok().or_else(|| {
        let theirs: safetensors::tensor::Metadata = serde_json::from_slice(json).ok()?;
        Some(theirs.data_len() as u64)
    })
}

fn check(file: &[u8]) {
    let ours = SafeTensors::parse(file);
    let read = SafeTensors::from_source(file);
    match (&ours, &read) {
        (Ok(_), Ok(_)) => {}
        (Err(parsed), Err(read)) => assert_eq!(parsed.to_string(), read.to_string()),
        _ => panic!("parsed and read differ: {:?}, {:?}", ours.err(), read.err()),
    }
    match (ours, safetensors::SafeTensors::deserialize(file)) {
        (Ok(ours), Ok(theirs)) => {
            agree(&ours, &theirs, file);
            is_consistent(&ours);
        }
        (Ok(_), Err(error)) => panic!("only the reference refuses this: {error}"),
        (Err(error), Ok(_)) => {
            assert!(
                is_documented(error.kind()) || has_duplicate_names(file),
                "only we refuse this: {error}"
            );
        }
        (Err(_), Err(_)) => {}
    }
}

/// Both found the same in the file.
fn agree(ours: &SafeTensors<&[u8]>, theirs: &safetensors::SafeTensors<'_>, file: &[u8]) {
    assert_eq!(ours.header().len(), theirs.len());
    for (name, view) in ours.views() {
        let tensor = theirs.tensor(name).unwrap();
        assert_eq!(serde_json::to_value(tensor.dtype()).unwrap(), view.dtype().name());
        assert_eq!((tensor.shape(), tensor.data()), (view.shape(), view.data()));
    }
    let (_, header) = safetensors::SafeTensors::read_metadata(file).unwrap();
    let metadata: BTreeMap<_, _> =
        header.metadata().clone().unwrap_or_default().into_iter().collect();
    assert_eq!(*ours.metadata(), metadata);
}

/// Every way to ask the header gives the same answer.
fn is_consistent(ours: &SafeTensors<&[u8]>) {
    let header = ours.header();
    let mut end = 0;
    for (position, tensor) in header.iter().enumerate() {
        assert_eq!(tensor.data_offsets().start, end);
        end = tensor.data_offsets().end;
        assert_eq!(ours.tensors().nth(position).unwrap().name(), tensor.name());
        assert_eq!(header.get(tensor.name()), Some(tensor));
    }
    assert_eq!(end, header.data_len());
    assert_eq!(ours.views().count(), header.len());
    assert_eq!(header.data_start() + header.data_len(), ours.source().len() as u64);
    assert!(header.get("\u{1}\u{fffd} no tensor").is_none());
}

/// Returns `true` if SECURITY.md ("Where we are stricter than the reference") has this error.
fn is_documented(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DuplicateTensor
            | ErrorKind::EntryNotAnObject { found: "an array" }
            | ErrorKind::WrongType { field: "dtype", found: "an object", .. }
            | ErrorKind::DuplicateMetadataKey { .. }
            | ErrorKind::UnknownField { .. }
            | ErrorKind::ShapeOverflow { .. }
    )
}

/// Returns `true` if a name appears twice in the header. The reference looks at the last entry of a
/// name only; we look at each, for any kind of error.
fn has_duplicate_names(file: &[u8]) -> bool {
    struct Names;

    impl<'de> Visitor<'de> for Names {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
            let (mut seen, mut twice) = (HashSet::new(), false);
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                twice |= !seen.insert(name);
            }
            Ok(twice)
        }
    }

    let json_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let json = &file[8..8 + json_len];
    serde_json::Deserializer::from_slice(json).deserialize_map(Names).unwrap()
}
