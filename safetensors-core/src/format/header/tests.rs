//! Tests that the fast path and the general path agree on every text: same header, or same error.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::parse::Way;
use super::{Header, Limits, canonical};
use crate::format::dtype::Dtype;

/// Everything that a caller can see of the outcome.
fn outcome(text: &[u8], limits: &Limits, way: Way) -> String {
    match Header::parse_by(text, limits, way) {
        Ok(header) => {
            for (position, tensor) in header.iter().enumerate() {
                assert_eq!(header.position(tensor.name()), Some(position));
            }
            let lengths = (header.json_len(), header.data_len());
            format!("{:?} {:?} {lengths:?}", header.iter().collect::<Vec<_>>(), header.metadata())
        }
        Err(error) => format!("{error:#?}"),
    }
}

fn assert_agree(text: &[u8], limits: &Limits) {
    let (fast, general) =
        (outcome(text, limits, Way::FastFirst), outcome(text, limits, Way::Grammar));
    assert_eq!(fast, general, "{}", String::from_utf8_lossy(text));
}

/// How one entry is written: as the reference implementation does, or in another valid form.
#[derive(Clone, Copy, Debug)]
enum Form {
    Canonical,
    Spaced,
    Reordered,
    Escaped,
}

fn write_entry(
    form: Form,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
    begin: u64,
    end: u64,
) -> String {
    let shape = format!("{shape:?}").replace(' ', "");
    match form {
        Form::Canonical => {
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#
            )
        }
        Form::Spaced => {
            let shape = shape.replace(',', " ,\n");
            format!(
                r#" "{name}" : {{ "dtype": "{dtype}", "shape": {shape}, "data_offsets": [ {begin}, {end} ] }} "#
            )
        }
        Form::Reordered => {
            format!(
                r#""{name}":{{"data_offsets":[{begin},{end}],"shape":{shape},"dtype":"{dtype}"}}"#
            )
        }
        Form::Escaped => {
            format!(
                r#""\u0061{name}":{{"dtype":"{dtype}","sh\u0061pe":{shape},"data_offsets":[{begin},{end}]}}"#
            )
        }
    }
}

/// Returns the text of a valid header, except that names may be duplicated.
fn header() -> impl Strategy<Value = String> {
    let form = prop_oneof![
        6 => Just(Form::Canonical),
        1 => Just(Form::Spaced),
        1 => Just(Form::Reordered),
        1 => Just(Form::Escaped),
    ];
    let name = prop_oneof![
        8 => "[a-z]{0,3}[.][a-z0-9._]{0,20}",
        1 => "[é漢🦀 ~]{0,8}",
        1 => Just("__metadata__".into()),
    ];
    let dim = prop_oneof![8 => 0..5_usize, 1 => 0..100_000_usize];
    // More dimensions than the fast path takes are small, so that their product fits.
    let few = prop::collection::vec(dim, 0..4);
    let many = prop::collection::vec(0..3_usize, canonical::MAX_NDIM - 1..canonical::MAX_NDIM + 3);
    let shape = prop_oneof![8 => few, 1 => many];
    let entry = (form, name, select(Dtype::ALL), shape);
    let metadata = prop_oneof![
        Just(""),
        Just(r#""__metadata__":{},"#),
        Just(r#""__metadata__":{"format":"pt","a\n":"é"},"#)
    ];
    (metadata, prop::collection::vec(entry, 0..6), 0..12_usize).prop_map(
        |(metadata, entries, padding)| {
            let mut begin = 0;
            let mut written = Vec::new();
            for (form, name, dtype, mut shape) in entries {
                if dtype.is_sub_byte() {
                    shape.push(4);
                }
                let end = begin + crate::shape::byte_len(dtype, &shape).unwrap();
                written.push(write_entry(form, &name, dtype, &shape, begin, end));
                begin = end;
            }
            format!("{{{metadata}{}}}{}", written.join(","), " ".repeat(padding))
        },
    )
}

/// One change at any place of a text.
#[derive(Clone, Debug)]
enum Change {
    Replace(Index, u8),
    Insert(Index, u8),
    Delete(Index),
    Swap(Index, Index),
    Repeat(Index, u8),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<Index>();
    let byte = || prop_oneof![8 => select(br#""\,:[]{} 0129-.eEtnu/F"#.to_vec()), 1 => any::<u8>()];
    prop_oneof![
        4 => (at(), byte()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        4 => (at(), byte()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        4 => at().prop_map(Change::Delete),
        2 => (at(), at()).prop_map(|(one, other)| Change::Swap(one, other)),
        2 => (at(), any::<u8>()).prop_map(|(at, len)| Change::Repeat(at, len)),
        1 => at().prop_map(Change::Cut),
    ]
}

fn apply(text: &mut Vec<u8>, change: &Change) {
    if text.is_empty() {
        return;
    }
    let len = text.len();
    match change {
        Change::Replace(at, byte) => text[at.index(len)] = *byte,
        Change::Insert(at, byte) => text.insert(at.index(len), *byte),
        Change::Delete(at) => drop(text.remove(at.index(len))),
        Change::Swap(one, other) => text.swap(one.index(len), other.index(len)),
        Change::Repeat(at, count) => {
            let start = at.index(len);
            let end = len.min(start + usize::from(*count));
            text.extend_from_within(start..end);
            text[start..].rotate_right(end - start);
        }
        Change::Cut(at) => text.truncate(at.index(len)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn both_paths_agree_on_headers_that_are_right(text in header(), most in 0..8_usize) {
        assert_agree(text.as_bytes(), &Limits::default());
        assert_agree(text.as_bytes(), &Limits { tensors: most, ..Limits::default() });
        assert_agree(text.as_bytes(), &Limits { ndim: most, ..Limits::default() });
        assert_agree(text.as_bytes(), &Limits { metadata_entries: most, ..Limits::default() });
    }

    #[test]
    fn both_paths_agree_on_headers_that_were_changed(
        text in header(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let mut text = text.into_bytes();
        for change in &changes {
            apply(&mut text, change);
        }
        assert_agree(&text, &Limits::default());
    }
}

#[test]
fn both_paths_agree_after_every_change_of_one_byte() {
    let text = br#"{"__metadata__":{"a":"b"},"w.0":{"dtype":"F32","shape":[2,30],"data_offsets":[0,240]},"b":{"dtype":"U8","shape":[],"data_offsets":[240,241]},"e":{"dtype":"F64","shape":[0],"data_offsets":[241,241]}}      "#;
    assert_agree(text, &Limits::default());
    for at in 0..text.len() {
        let mut shorter = text.to_vec();
        shorter.remove(at);
        assert_agree(&shorter, &Limits::default());
        for byte in 0..=u8::MAX {
            let mut changed = text.to_vec();
            changed[at] = byte;
            assert_agree(&changed, &Limits::default());
            let mut longer = text.to_vec();
            longer.insert(at, byte);
            assert_agree(&longer, &Limits::default());
        }
    }
}

#[test]
fn the_fast_path_takes_the_canonical_form_and_no_other() {
    let (name, dtype, shape) = ("model.layers.0.mlp.weight", Dtype::BF16, [3, 4096, 0]);
    let padding = " ".repeat(8);
    for (form, is_taken) in [
        (Form::Canonical, true),
        (Form::Spaced, false),
        (Form::Reordered, false),
        (Form::Escaped, false),
    ] {
        let text = write_entry(form, name, dtype, &shape, 7, 123_456_789_012) + &padding;
        let mut dims = Vec::from([9]);
        let found =
            canonical::entry(text.as_bytes(), 0, &mut dims, &mut canonical::Before::default());
        assert_eq!(found.is_some(), is_taken, "{form:?}");
        if let Some(canonical::CanonicalEntry { name: range, entry, next }) = found {
            assert_eq!((&text[range], &text[next..]), (name, padding.as_str()));
            assert_eq!((entry.dtype, entry.begin, entry.end), (dtype, 7, 123_456_789_012));
            assert_eq!((entry.shape, dims), (1..4, Vec::from([9, 3, 4096, 0])));
        }
    }
    let metadata =
        write_entry(Form::Canonical, "__metadata__", dtype, &shape, 0, 0).to_string() + &padding;
    assert!(
        canonical::entry(
            metadata.as_bytes(),
            0,
            &mut Vec::new(),
            &mut canonical::Before::default()
        )
        .is_none()
    );
}
