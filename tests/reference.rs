//! Against the reference implementation: what we write it reads, what it writes we read, and where we are stricter is a closed
//! list.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use safetensors::tensor::TensorView as ReferenceView;
use safetensors_bridge::{Dtype, ErrorKind, Order, SafeTensors, SaveOptions, TensorView, serialize};

fn file(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// The reference's dtype of the same name.
fn reference_dtype(dtype: Dtype) -> safetensors::Dtype {
    serde_json::from_value(serde_json::Value::String(dtype.name().into())).unwrap()
}

#[test]
fn the_reference_reads_what_we_write() {
    for order in [Order::Alignment, Order::Given] {
        let data = [7_u8; 4 * 3 * 8];
        let shape = [4, 3];
        let views = Dtype::ALL.iter().map(|&dtype| {
            let len = 12 * dtype.bits() as usize / 8;
            (format!("t \"{dtype}\"\n"), TensorView::new(dtype, &shape, &data[..len]).unwrap())
        });
        let options = SaveOptions::new().order(order).metadata([("format", "pt"), ("ключ", "\u{1}\\")]);
        let bytes = serialize(views.clone(), &options).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ours = SafeTensors::parse(&bytes).unwrap();
        assert_eq!((theirs.len(), ours.header().len()), (22, 22));
        for (name, view) in views {
            let tensor = theirs.tensor(&name).unwrap();
            assert_eq!(tensor.dtype(), reference_dtype(view.dtype()));
            assert_eq!((tensor.shape(), tensor.data()), (view.shape(), view.data()));
            assert_eq!(ours.view(&name).unwrap(), view);
        }
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["ключ"], "\u{1}\\");
    }
}

#[test]
fn we_read_what_the_reference_writes() {
    let data = [1_u8; 4 * 3 * 8];
    let tensors = Dtype::ALL.iter().map(|&dtype| {
        let len = 12 * dtype.bits() as usize / 8;
        (dtype.name(), ReferenceView::new(reference_dtype(dtype), vec![4, 3], &data[..len]).unwrap())
    });
    let metadata = Some(HashMap::from([("format".to_owned(), "pt".to_owned())]));
    let bytes = safetensors::serialize(tensors, metadata).unwrap();
    let ours = SafeTensors::parse(&bytes).unwrap();
    assert_eq!(ours.metadata()["format"], "pt");
    for &dtype in Dtype::ALL {
        let view = ours.view(dtype.name()).unwrap();
        assert_eq!((view.dtype(), view.shape()), (dtype, &[4, 3][..]));
    }
}

/// The list in ARCHITECTURE.md, whole: each is accepted there and refused here.
#[test]
fn where_we_are_stricter() {
    type Check = fn(&ErrorKind) -> bool;
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let cases: [(&str, String, Check); 6] = [
        ("a name twice", format!(r#"{{"a":{entry},"a":{entry}}}"#), |kind| matches!(kind, ErrorKind::DuplicateTensor)),
        ("a name twice, escaped", format!(r#"{{"a":{entry},"\u0061":{entry}}}"#), |kind| {
            matches!(kind, ErrorKind::DuplicateTensor)
        }),
        ("an array for an entry", r#"{"a":["U8",[1],[0,1]]}"#.into(), |kind| {
            matches!(kind, ErrorKind::EntryNotAnObject { .. })
        }),
        ("a dtype as an object", r#"{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}"#.into(), |kind| {
            matches!(kind, ErrorKind::WrongType { field: "dtype", .. })
        }),
        ("a metadata key twice", format!(r#"{{"__metadata__":{{"k":"1","k":"2"}},"a":{entry}}}"#), |kind| {
            matches!(kind, ErrorKind::DuplicateMetadataKey { .. })
        }),
        (
            "an unknown field",
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[[1]]}}"#.into(),
            |kind| matches!(kind, ErrorKind::UnknownField { .. }),
        ),
    ];
    for (what, json, check) in cases {
        let bytes = file(&json, &[0]);
        assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok(), "the reference has become stricter: {what}");
        let error = SafeTensors::parse(&bytes).unwrap_err();
        assert!(check(error.kind()), "{what}: {error}");
    }
}
