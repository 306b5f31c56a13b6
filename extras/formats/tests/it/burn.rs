//! Records of old versions of burn. `dev/scripts/burn_records` has written the fixtures, with burn
//! 0.18.

use std::path::PathBuf;

use safetensors_core::{Checkpoint, Dtype, Error, SaveOptions};
use safetensors_formats::{ErrorKind, Format, Options, TensorFile};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/burn").join(name)
}

fn opened(bytes: Vec<u8>) -> Result<Checkpoint<TensorFile>, Error> {
    let file = TensorFile::from_source(bytes, "a.mpk", &Options::new())?;
    assert_eq!(file.format(), Format::Burn);
    Checkpoint::from_source(file, "a.mpk")
}

/// The tensors of both records: their shapes, and their first numbers, which go up by a quarter.
const FLOATS: [(&str, &[usize], f32); 7] = [
    ("empty", &[0, 3], 0.0),
    ("encoder.bias", &[3], -1.0),
    ("encoder.weight", &[2, 3], 1.0),
    ("head.Linear.weight", &[1, 2], 40.0),
    ("layers.0.weight", &[3, 3], 20.0),
    ("layers.1.bias", &[1], -30.0),
    ("layers.1.weight", &[3, 1], 30.0),
];

#[test]
fn a_record_has_the_names_numbers_and_ids_of_its_module() {
    for (file, float, int) in
        [("full.mpk", Dtype::F32, Dtype::I32), ("half.mpk", Dtype::F16, Dtype::I16)]
    {
        let checkpoint = safetensors_formats::open(fixture(file), &Options::new()).unwrap();
        let options = safetensors_core::LoadOptions::new().floats_as(Dtype::F32);
        for (name, shape, first) in FLOATS {
            let tensor = checkpoint.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (float, shape), "{name}");
            let found = tensor.read_with(&options).unwrap().into_vec::<f32>().unwrap();
            let expected: Vec<_> = (0..found.len()).map(|i| first + i as f32 / 4.0).collect();
            assert_eq!(found, expected, "{name}");
        }
        // BatchNorm has four more.
        assert_eq!(checkpoint.len(), FLOATS.len() + 4 + 2);
        assert_eq!(checkpoint.tensor("norm.running_var").unwrap().shape(), [3]);
        let steps = checkpoint.tensor("steps").unwrap();
        assert_eq!(steps.dtype(), int);
        let expected: Vec<u8> = match int {
            Dtype::I32 => [7_i32, -1, 1000].iter().flat_map(|it| it.to_le_bytes()).collect(),
            _ => [7_i16, -1, 1000].iter().flat_map(|it| it.to_le_bytes()).collect(),
        };
        assert_eq!(steps.read().unwrap().bytes(), expected);
        let mask = checkpoint.tensor("mask").unwrap();
        assert_eq!((mask.dtype(), mask.shape()), (Dtype::BOOL, &[1, 3][..]));
        assert_eq!(mask.read().unwrap().into_vec::<bool>().unwrap(), [true, false, true]);

        let metadata = checkpoint.metadata();
        assert_eq!(metadata["burn.version"], "0.18.0");
        let ids: serde_json::Value =
            serde_json::from_str(&metadata["safetensors_bridge.param_ids"]).unwrap();
        assert_eq!(ids.as_object().unwrap().len(), checkpoint.len());
        assert_eq!((&ids["encoder.weight"], &ids["layers.1.bias"]), (&10.into(), &31.into()));
        assert_eq!(ids["head.Linear.weight"], u64::MAX);
        assert!(checkpoint.files()[0].safetensors().source().notes().is_empty());
    }
}

#[test]
fn a_record_is_recognised_by_its_content_and_becomes_safetensors() {
    let bytes = std::fs::read(fixture("full.mpk")).unwrap();
    assert_eq!(Format::detect(&bytes).unwrap(), Some(Format::Burn));
    assert_eq!(Format::from_name("model.mpk"), Some(Format::Burn));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let record = opened(bytes).unwrap();
    safetensors_core::Rewrite::from_checkpoint(&record).save(&path, &SaveOptions::new()).unwrap();
    let file = Checkpoint::open(path).unwrap();
    assert_eq!((file.len(), file.metadata()), (record.len(), record.metadata()));
    let rows = file.tensor("encoder.weight").unwrap().slice((1..2, 1..)).unwrap().read().unwrap();
    assert_eq!(rows.into_vec::<f32>().unwrap(), [2.0, 2.25]);
}

fn text(text: &str) -> Vec<u8> {
    let len = (text.len() as u16).to_be_bytes();
    [&[0xda], &len[..], text.as_bytes()].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat());
    [0x80 | entries.len() as u8].into_iter().chain(pairs).collect()
}

/// A record with this item.
fn record(item: Vec<u8>) -> Vec<u8> {
    let metadata = [&[0x81][..], &text("version"), &text("0.14.0")].concat();
    [&b"\x82\xa8metadata"[..], &metadata, &text("item"), &item].concat()
}

/// A tensor of these bytes.
fn tensor(bytes: &[u8], shape: &[u8], dtype: Vec<u8>) -> Vec<u8> {
    let bytes = [&[0xc4, bytes.len() as u8], bytes].concat();
    let shape = [&[0x90 | shape.len() as u8], shape].concat();
    map(&[("bytes", bytes), ("shape", shape), ("dtype", dtype)])
}

#[test]
fn other_layouts_of_tensors_are_read_or_refused_by_name() {
    // Bytes that are listed as numbers, a boolean with its store, a tensor without an id, values
    // that are no tensors, and a parameter with a UUID as its id.
    let listed = map(&[
        ("bytes", vec![0x92, 0x07, 0xcc, 0xff]),
        ("shape", vec![0x92, 1, 2]),
        ("dtype", text("U8")),
    ]);
    let uuid = text("936DA01F-9ABD-4d9d-80C7-02AF85C822A8");
    let item = map(&[
        ("listed", listed),
        ("flag", tensor(&[1], &[1], map(&[("Bool", text("U8"))]))),
        ("wide", map(&[("id", uuid), ("param", tensor(&[0; 4], &[], text("Flex32")))])),
        ("name", text("x")),
        ("rates", vec![0x93, 0xc0, 0xc3, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]),
    ]);
    let checkpoint = opened(record(item)).unwrap();
    let read = |name: &str| checkpoint.tensor(name).unwrap().read().unwrap();
    assert_eq!(read("listed").into_vec::<u8>().unwrap(), [7, 255]);
    assert_eq!(read("flag").into_vec::<bool>().unwrap(), [true]);
    assert_eq!((read("wide").dtype(), read("wide").shape().len()), (Dtype::F32, 0));
    assert!(!checkpoint.metadata().contains_key("safetensors_bridge.param_ids"));
    let notes = checkpoint.files()[0].safetensors().source().notes();
    assert_eq!(notes, ["skipped: 3 numbers and texts"]);

    let refused = |value: Vec<u8>| opened(record(map(&[("w", value)]))).unwrap_err();
    let quantised = tensor(&[0], &[1], map(&[("QFloat", vec![0x80])]));
    for (value, name) in [(quantised, "QFloat"), (tensor(&[0; 4], &[1], text("F8")), "F8")] {
        let error = refused(value);
        let Some(ErrorKind::NoDtype { name: found }) = error.other() else { panic!("{error}") };
        assert_eq!((found.as_str(), error.tensor()), (name, Some("w")));
    }
    let old = map(&[("value", vec![0x91, 0x07]), ("shape", vec![0x91, 1])]);
    let error = refused(map(&[("id", text("10")), ("param", old)]));
    assert!(matches!(error.other(), Some(ErrorKind::NotRead { .. })), "{error}");
    assert!(error.to_string().contains("record-backward-compat"), "{error}");
    let error = refused(tensor(&[0; 4], &[2], text("F32")));
    assert!(error.to_string().contains("should have 8 bytes, found 4"), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), Some("a.mpk")));
}

#[test]
fn modules_may_have_fields_named_like_a_parameters_fields() {
    let one = |byte: u8| tensor(&[byte], &[1], text("U8"));
    let weight = map(&[("id", text("10")), ("param", one(1))]);
    let item = map(&[
        ("pair", map(&[("id", weight), ("param", one(2))])),
        ("bytes", map(&[("bytes", one(3)), ("shape", one(4)), ("dtype", vec![0xc0])])),
    ]);
    let checkpoint = opened(record(item)).unwrap();
    let read = |name| checkpoint.tensor(name).unwrap().read().unwrap().into_vec::<u8>().unwrap();
    let names = ["pair.id", "pair.param", "bytes.bytes", "bytes.shape"];
    assert_eq!(names.map(read), [[1], [2], [3], [4]]);
}

/// Small files that claim much, or nest without end.
#[test]
fn hostile_records_take_no_memory() {
    let claims = [
        vec![0xc6, 0xff, 0xff, 0xff, 0xff],
        vec![0xdb, 0xff, 0xff, 0xff, 0xff],
        vec![0xdd, 0xff, 0xff, 0xff, 0xff],
        vec![0xdf, 0xff, 0xff, 0xff, 0xff],
        map(&[("bytes", vec![0xdd, 0xff, 0xff, 0xff, 0xff])]),
        tensor(&[], &[0xff, 0xff], text("F32")),
    ];
    for claim in claims {
        let error = opened(record(claim)).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadRecord { .. })), "{error}");
    }
    let parameter = [&[0x82][..], &text("id"), &text("x"), &text("param")].concat();
    let field = [&[0x81][..], &text("field")].concat();
    let mixed = [&parameter[..], &[0x91], &field].concat();
    for nested in [&[0x91][..], &parameter, &field, &mixed] {
        let error = opened(record(nested.repeat(100_000))).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::NestedTooDeep { .. })), "{error}");
        let shallow = [&nested.repeat(30)[..], &[0xc0]].concat();
        opened(record(shallow)).unwrap();
    }

    // A long key is a part of many names.
    let named = |tensors: Vec<u8>| {
        let list = [&[0xdd, 0, 0, 0x0f, 0xa0][..], &tensors.repeat(4000)].concat();
        record(map(&[(&"n".repeat(40_000), list)]))
    };
    let scalar = tensor(&[], &[0], text("F32"));
    let with_id = map(&[("id", text("10")), ("param", scalar.clone())]);
    for tensors in [scalar, with_id] {
        let error = opened(named(tensors)).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::OutOfProportion { .. })), "{error}");
    }

    let whole = std::fs::read(fixture("full.mpk")).unwrap();
    opened([&whole[..], b"\0"].concat()).unwrap_err();
}
