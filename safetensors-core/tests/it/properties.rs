//! Properties of every input: nothing panics, accepted files are consistent, and saved tensors are
//! read back unchanged.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors_core::save::Order;
use safetensors_core::shape;

use crate::support::*;

/// Failures belong in tests, so no files of failing seeds are written.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// Asserts the properties of a file that is accepted.
fn assert_consistent(bytes: &[u8]) {
    let Ok(archive) = SafeTensors::parse(bytes) else { return };
    let header = archive.header();
    assert_eq!(header.data_start() + header.data_len(), bytes.len() as u64);

    // In file order, each view begins where the previous one ends.
    let mut rest = &bytes[header.data_start() as usize..];
    let mut views = 0;
    for (name, view) in archive.views() {
        assert_eq!(
            view.data().len() as u64,
            shape::byte_len(view.dtype(), view.shape()).unwrap(),
            "{name:?}"
        );
        let (data, after) = rest.split_at(view.data().len());
        assert!(std::ptr::eq(data, view.data()), "{name:?}");
        assert_eq!(archive.view(name).unwrap(), view, "by its name");
        if view.dtype() != Dtype::BOOL {
            assert_eq!(file_bytes(&TensorBuf::from_view(&view).unwrap()), data);
        }
        (rest, views) = (after, views + 1);
    }
    assert!(rest.is_empty());
    assert_eq!(views, header.len());

    // A less strict JSON reader reads the same header.
    let json = &bytes[8..header.data_start() as usize];
    let other: BTreeMap<String, serde_json::Value> = serde_json::from_slice(json).unwrap();
    assert_eq!(other.keys().filter(|key| *key != "__metadata__").count(), header.len());
    for (name, entry) in other.iter().filter(|(key, _)| *key != "__metadata__") {
        let tensor = header.get(name).unwrap();
        let offsets = tensor.data_offsets();
        let expected = serde_json::json!({
            "dtype": tensor.dtype().name(), "shape": tensor.shape(), "data_offsets": [offsets.start, offsets.end],
        });
        assert_eq!(entry, &expected);
    }
    let metadata = other.get("__metadata__").cloned().unwrap_or(serde_json::json!({}));
    assert_eq!(metadata, serde_json::json!(archive.metadata()));

    // Reading from a source gives the same as parsing in memory.
    let read = SafeTensors::from_source(bytes).unwrap();
    assert!(read.header().iter().eq(archive.header().iter()));
}

/// A valid file with metadata, escapes, several dtypes, tensors without bytes and scalars.
fn valid_file() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt","\u00e9":"\n"},
        "a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
        "b\"":{"dtype":"U8","shape":[],"data_offsets":[16,17]}, "empty":{"dtype":"I64","shape":[0,3],"data_offsets":[17,17]},
        "":{"data_offsets":[17,20],"shape":[4],"dtype":"F6_E2M3"}}   "#;
    file(header, 20)
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Delete(Index, usize),
    Duplicate(Index, usize),
    Truncate(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Bytes with a meaning in a header are more likely than others.
    let byte = || prop_oneof![select(&b"{}[]\":,\\0123456789 -.e\0ux/"[..]), any::<u8>()];
    prop_oneof![
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), vec(byte(), 1..5)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<Index>(), 1..20_usize).prop_map(|(at, len)| Mutation::Delete(at, len)),
        (any::<Index>(), 1..60_usize).prop_map(|(at, len)| Mutation::Duplicate(at, len)),
        any::<Index>().prop_map(Mutation::Truncate),
    ]
}

fn apply(mutation: Mutation, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let range = |at: Index, len: usize| {
        at.index(bytes.len())..(at.index(bytes.len()) + len).min(bytes.len())
    };
    match mutation {
        Mutation::Flip(at, bit) => *at.get_mut(bytes) ^= 1 << bit,
        Mutation::Set(at, byte) => *at.get_mut(bytes) = byte,
        Mutation::Insert(at, inserted) => drop(bytes.splice(range(at, 0), inserted)),
        Mutation::Delete(at, len) => drop(bytes.drain(range(at, len))),
        Mutation::Duplicate(at, len) => {
            let range = range(at, len);
            let copy = bytes[range.clone()].to_vec();
            drop(bytes.splice(range.start..range.start, copy));
        }
        Mutation::Truncate(at) => bytes.truncate(at.index(bytes.len())),
    }
}

proptest! {
    #![proptest_config(config(2000))]

    /// Mutates the header only. The length field is corrected, so that only the mutation can cause
    /// an error.
    #[test]
    fn a_mutated_header_is_consistent_or_refused(mutations in vec(mutation(), 1..4)) {
        let file = valid_file();
        let (header, data) = file[8..].split_at(file.len() - 8 - 20);
        let mut header = header.to_vec();
        mutations.into_iter().for_each(|mutation| apply(mutation, &mut header));
        assert_consistent(&file_with(header, data));
    }
}

/// A dtype, a shape that it can have, and data of that length.
fn tensor() -> impl Strategy<Value = (Dtype, Vec<usize>, Vec<u8>)> {
    (select(Dtype::ALL), vec(0..5_usize, 0..4), any::<u8>()).prop_map(|(dtype, mut shape, seed)| {
        if dtype.is_sub_byte() {
            // Four elements of any dtype fill whole bytes.
            shape.push(4);
        }
        let bytes = shape::byte_len(dtype, &shape).unwrap() as usize;
        let data =
            (0..bytes).map(|i| seed.wrapping_mul(i as u8 | 1).wrapping_add(i as u8)).collect();
        (dtype, shape, data)
    })
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn saved_tensors_are_read_back(
        tensors in btree_map(any::<String>().prop_filter("reserved", |name| name != "__metadata__"), tensor(), 0..12),
        metadata in btree_map(any::<String>(), any::<String>(), 0..5),
        keep_order in any::<bool>(),
        align in (3..13_u32).prop_map(|power| 1 << power),
    ) {
        let order = if keep_order { Order::Given } else { Order::Alignment };
        let options = SaveOptions::new().metadata(metadata.clone()).order(order).align(align);
        let views = tensors.iter().map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape, data).unwrap()));
        let bytes = serialize(views.clone(), &options).unwrap();
        assert_consistent(&bytes);

        let archive = SafeTensors::parse(&bytes).unwrap();
        prop_assert_eq!(archive.metadata(), &metadata);
        prop_assert_eq!(archive.header().data_start() % align as u64, 0);
        let mut read: Vec<_> = archive.views().collect();
        // Saving the tensors again gives the same bytes, in file order and in sorted order.
        prop_assert_eq!(&serialize(archive.views(), &options.clone().order(Order::Given)).unwrap(), &bytes);
        prop_assert_eq!(&serialize(archive.views(), &options).unwrap(), &bytes);

        read.sort_unstable_by_key(|(name, _)| *name);
        let saved: Vec<_> = views.map(|(name, view)| (name.as_str(), view)).collect();
        prop_assert_eq!(read, saved);
    }
}
