//! Compares this crate with the reference implementation. Each reads the other's files, and both
//! write equal files. The cases where this crate is stricter are a closed list.

mod bytes;
mod statements;

use std::collections::HashMap;

use safetensors::tensor::TensorView as ReferenceView;
use safetensors_bridge::save::Order;
use safetensors_bridge::{Dtype, ErrorKind, SafeTensors, SaveOptions, TensorView, serialize};

fn file(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// Returns the reference's dtype of the same name.
fn reference_dtype(dtype: Dtype) -> safetensors::Dtype {
    serde_json::from_value(serde_json::Value::String(dtype.name().into())).unwrap()
}

#[test]
fn the_reference_reads_our_files() {
    for order in [Order::Alignment, Order::Given] {
        let data = [7_u8; 4 * 3 * 8];
        let shape = [4, 3];
        let views = Dtype::ALL.iter().map(|&dtype| {
            let len = 12 * dtype.bits() as usize / 8;
            (format!("t \"{dtype}\"\n"), TensorView::new(dtype, &shape, &data[..len]).unwrap())
        });
        let options =
            SaveOptions::new().order(order).metadata([("format", "pt"), ("ключ", "\u{1}\\")]);
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
fn we_read_files_of_the_reference() {
    let data = [1_u8; 4 * 3 * 8];
    let tensors = Dtype::ALL.iter().map(|&dtype| {
        let len = 12 * dtype.bits() as usize / 8;
        (
            dtype.name(),
            ReferenceView::new(reference_dtype(dtype), vec![4, 3], &data[..len]).unwrap(),
        )
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

/// The list in SECURITY.md: the reference accepts each case, and this crate refuses it.
/// [`nowhere_else_do_we_disagree`] checks that the list is complete.
#[test]
fn where_we_are_stricter() {
    type Check = fn(&ErrorKind) -> bool;
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let cases: [(&str, String, Check); 7] = [
        ("a name twice", format!(r#"{{"a":{entry},"a":{entry}}}"#), |kind| {
            matches!(kind, ErrorKind::DuplicateTensor)
        }),
        ("a name twice, escaped", format!(r#"{{"a":{entry},"\u0061":{entry}}}"#), |kind| {
            matches!(kind, ErrorKind::DuplicateTensor)
        }),
        ("an array for an entry", r#"{"a":["U8",[1],[0,1]]}"#.into(), |kind| {
            matches!(kind, ErrorKind::EntryNotAnObject { .. })
        }),
        (
            "a dtype as an object",
            r#"{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}"#.into(),
            |kind| matches!(kind, ErrorKind::WrongType { field: "dtype", .. }),
        ),
        (
            "a metadata key twice",
            format!(r#"{{"__metadata__":{{"k":"1","k":"2"}},"a":{entry}}}"#),
            |kind| matches!(kind, ErrorKind::DuplicateMetadataKey { .. }),
        ),
        (
            "an unknown field",
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[[1]]}}"#.into(),
            |kind| matches!(kind, ErrorKind::UnknownField { .. }),
        ),
        (
            "an overflow behind a zero dimension",
            format!(
                r#"{{"a":{entry},"b":{{"dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[1,1]}}}}"#
            ),
            |kind| matches!(kind, ErrorKind::ShapeOverflow { .. }),
        ),
    ];
    for (what, json, check) in cases {
        let bytes = file(&json, &[0]);
        assert!(
            safetensors::SafeTensors::deserialize(&bytes).is_ok(),
            "the reference has become stricter: {what}"
        );
        let error = SafeTensors::parse(&bytes).unwrap_err();
        assert!(check(error.kind()), "{what}: {error}");
    }
}

/// Numbers below the number that each call is given. They are the same in each run.
fn random_numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// The tokens of the header that is mutated.
#[rustfmt::skip]
const SOUND: &[&str] = &[
    "{", r#""__metadata__""#, ":", "{", r#""k""#, ":", r#""v""#, "}", ",",
    r#""a""#, ":", "{", r#""dtype""#, ":", r#""U8""#, ",", r#""shape""#, ":", "[", "1", "]", ",",
    r#""data_offsets""#, ":", "[", "0", ",", "1", "]", "}", ",",
    r#""b""#, ":", "{", r#""dtype""#, ":", r#""F64""#, ",", r#""shape""#, ":", "[", "0", ",", "2", "]", ",",
    r#""data_offsets""#, ":", "[", "1", ",", "1", "]", "}", "}",
];

/// The tokens that mutations insert.
#[rustfmt::skip]
const TOKENS: &[&str] = &[
    "{", "}", "[", "]", ":", ",", r#""a""#, r#""b""#, r#""\u0061""#, r#""x""#, r#""__metadata__""#, r#""dtype""#, r#""shape""#,
    r#""data_offsets""#, r#""U8""#, r#""F4""#, r#""F64""#, "0", "1", "2", "4294967296", "18446744073709551615",
    "18446744073709551616", "-0", "1.0", "1e0", "01", "true", "null", " ", "\n", "\t", "{}", "[]",
    r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#, r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#,
    r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"#, r#""x":{"dtype":"I8","shape":[0],"data_offsets":[1,1]},"#,
    r#""x":1,"#, r#""k":"w","#, r#"["U8",[1],[0,1]]"#, r#"{"U8":null}"#, r#""__metadata__":{},"#,
];

/// Sound headers with a few tokens removed, added, replaced or swapped at random.
fn mutated_headers() -> impl Iterator<Item = String> {
    let mut random = random_numbers(88_172_645_463_325_252);
    std::iter::repeat_with(move || {
        let mut json = SOUND.to_vec();
        for _ in 0..=random(3) {
            let (at, other) = (random(json.len()), random(json.len()));
            match random(4) {
                0 => drop(json.remove(at)),
                1 => json.insert(at, TOKENS[random(TOKENS.len())]),
                2 => json[at] = TOKENS[random(TOKENS.len())],
                _ => json.swap(at, other),
            }
        }
        json.concat()
    })
}

/// Returns `true` if this error is for a case on the list in SECURITY.md, which only the reference
/// accepts.
fn is_on_the_list(kind: &ErrorKind) -> bool {
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

/// Mutated headers: the reference accepts every header that this crate accepts, with the same
/// tensors. A header that only the reference accepts is on the list.
#[test]
fn nowhere_else_do_we_disagree() {
    let (mut agreed, mut stricter) = (0, 0);
    for json in mutated_headers().take(100_000) {
        let bytes = file(&json, &[0]);
        match (safetensors::SafeTensors::deserialize(&bytes), SafeTensors::parse(&bytes)) {
            (Ok(theirs), Ok(ours)) => {
                assert_eq!(theirs.len(), ours.header().len(), "{json}");
                for (name, view) in ours.views() {
                    let tensor = theirs.tensor(name).unwrap();
                    assert_eq!(
                        (tensor.shape(), tensor.data()),
                        (view.shape(), view.data()),
                        "{json}"
                    );
                }
                agreed += 1;
            }
            (Ok(_), Err(error)) => {
                // Only this crate reads a second entry of the same name, and may find any error in
                // it.
                let twice = json.matches(r#""a":"#).count() + json.matches(r#""\u0061":"#).count()
                    > 1
                    || json.matches(r#""b":"#).count() > 1;
                assert!(is_on_the_list(error.kind()) || twice, "only we refuse {json}: {error}");
                stricter += 1;
            }
            (Err(error), Ok(_)) => panic!("only the reference refuses {json}: {error}"),
            (Err(_), Err(_)) => {}
        }
    }
    assert!(
        agreed > 1000 && stricter > 100,
        "{agreed} agreed, {stricter} stricter: the mutations have lost their edge"
    );
}
