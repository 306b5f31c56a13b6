//! burnpack files. `safetensors-burn` tests them with burn.

use std::fs;
use std::path::Path;

use ciborium::{Value, cbor};
use safetensors_core::save::{AtomicFile, Sink};
use safetensors_core::{
    Checkpoint, Dtype, Error, Metadata, Rewrite, SaveOptions, TensorBuf, TensorSource,
};
use safetensors_formats::{ErrorKind, Format, Limits, Options, TensorFile, burn};
use safetensors_testing::files::names_in;

const IDS: &str = "safetensors_bridge.param_ids";
const SCALARS: &str = "safetensors_bridge.scalars";

/// Writes a rewrite to a file.
fn write<S: safetensors_core::ReadAt>(rewrite: &Rewrite<'_, S>, path: &Path) -> Result<(), Error> {
    let writer = burn::Writer::new(rewrite)?;
    let mut file = AtomicFile::create(path, &SaveOptions::new().durable(false))?;
    writer.write(&file, |_| ())?;
    file.commit()
}

fn opened(bytes: impl Into<Vec<u8>>) -> Result<Checkpoint<TensorFile>, Error> {
    let file = TensorFile::from_source(bytes.into(), "a.bpk", &Options::new())?;
    assert_eq!(file.format(), Format::Burnpack);
    Checkpoint::from_source(file, "a.bpk")
}

/// A file with this content, and a number of data bytes.
fn pack(content: &Value, data: usize) -> Vec<u8> {
    let mut text = Vec::new();
    ciborium::into_writer(content, &mut text).unwrap();
    let mut file = [&b"NRUB\x01\0"[..], &(text.len() as u32).to_le_bytes(), &text].concat();
    file.resize(file.len().next_multiple_of(256), 0);
    file.extend((0..data).map(|i| i as u8));
    file
}

/// Returns the description of a tensor.
fn tensor(dtype: Value, shape: &[u64], from: u64, to: u64) -> Value {
    cbor!({"dtype" => dtype, "shape" => shape, "data_offsets" => [from, to]}).unwrap()
}

/// A file with one tensor named `w`.
fn one(tensor: Value) -> Vec<u8> {
    pack(&cbor!({"tensors" => {"w" => tensor}}).unwrap(), 512)
}

fn buf(dtype: Dtype, shape: Vec<usize>, bytes: &[u8]) -> TensorBuf {
    let fill = |buf: &mut [u8]| {
        buf.copy_from_slice(bytes);
        Ok(())
    };
    TensorBuf::filled_by(dtype, shape, fill).unwrap()
}

/// A tensor for each dtype that burn has, an empty one, and a scalar.
fn tensors() -> Vec<(String, TensorBuf)> {
    use Dtype::*;
    let dtypes = [F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL];
    let of = |(name, dtype, shape): (String, Dtype, Vec<usize>)| {
        let len = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
        let byte = |i| if dtype == BOOL { i as u8 % 2 } else { i as u8 };
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        (name, buf(dtype, shape, &bytes))
    };
    let all = dtypes.map(|dtype| (format!("of.{dtype}"), dtype, vec![3, 5]));
    let more = [("empty", vec![0, 3]), ("scalar", vec![])];
    let more = more.map(|(name, shape)| (name.to_owned(), F32, shape));
    all.into_iter().chain(more).map(of).collect()
}

#[test]
fn everything_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let [model, path] = ["a.safetensors", "a.bpk"].map(|name| dir.path().join(name));
    let ids = r#"{"of.BF16":18446744073709551615,"scalar":0}"#;
    let options = SaveOptions::new().metadata([("note", "ünï"), (IDS, ids)]);
    safetensors_core::save(&model, tensors(), &options).unwrap();
    let model = Checkpoint::open(&model).unwrap();
    write(&Rewrite::from_checkpoint(&model), &path).unwrap();

    let read = safetensors_formats::open(&path, &Options::new()).unwrap();
    assert_eq!((read.len(), read.metadata()), (model.len(), model.metadata()));
    for tensor in model.tensors() {
        let found = read.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!((found.dtype(), found.shape()), (tensor.dtype(), tensor.shape()));
        assert_eq!(found.bytes(), tensor.read().unwrap().bytes(), "{}", tensor.name());
    }
    let rows = read.tensor("of.I16").unwrap().slice((1..2, 2..)).unwrap().read().unwrap();
    assert_eq!(rows.bytes(), [14, 15, 16, 17, 18, 19]);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(Format::detect(&bytes).unwrap(), Some(Format::Burnpack));
    // Each tensor begins at a multiple of 256 bytes, and the last one ends the file.
    let last = model.tensor("scalar").unwrap().byte_len() as usize;
    assert_eq!(bytes.len() % 256, last);

    // Equal tensors give equal bytes, in any order.
    let (again, unlike) = (dir.path().join("b.bpk"), tensors().into_iter().rev());
    let rewrite = unlike.fold(Rewrite::new(), |it, (name, tensor)| it.add(name, tensor).unwrap());
    let mut rewrite = rewrite;
    rewrite.metadata_mut().extend([("note".into(), "ünï".into()), (IDS.into(), ids.into())]);
    write(&rewrite, &again).unwrap();
    assert!(fs::read(again).unwrap() == bytes);
    // And nothing at all is a file, too.
    write(&Rewrite::new(), &path).unwrap();
    assert!(opened(fs::read(&path).unwrap()).unwrap().is_empty());
}

#[test]
fn a_tied_weight_has_its_bytes_once_and_each_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let [model, path] = ["a.safetensors", "a.bpk"].map(|name| dir.path().join(name));
    let weight = TensorBuf::from_vec(vec![300], vec![1.5_f64; 300]).unwrap();
    let options = SaveOptions::new().metadata([("head", "embed"), (IDS, r#"{"embed":7}"#)]);
    safetensors_core::save(&model, [("embed", &weight)], &options).unwrap();
    let model = Checkpoint::open(&model).unwrap();
    write(&Rewrite::from_checkpoint(&model), &path).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 3000);
    let read = safetensors_formats::open(&path, &Options::new()).unwrap();
    assert_eq!(read.aliases().map(|(name, _)| name).collect::<Vec<_>>(), ["head"]);
    for name in ["embed", "head"] {
        assert_eq!(read.tensor(name).unwrap().read().unwrap().bytes(), weight.bytes());
    }
    assert_eq!(read.metadata()[IDS], r#"{"embed":7,"head":7}"#);

    // Two empty tensors at one place are two.
    let empty = || tensor(Value::from("F32"), &[0], 0, 0);
    let file = pack(&cbor!({"tensors" => {"a" => empty(), "b" => empty()}}).unwrap(), 0);
    assert_eq!(opened(file).unwrap().len(), 2);
}

/// An optimizer's record has steps and rates in addition to its tensors.
#[test]
fn numbers_and_ids_come_along() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, out] = ["1.bpk", "2.bpk", "out.bpk"].map(|name| dir.path().join(name));
    let record = |path: &Path, name: &str, id: u64, step: Value| {
        let mut tensor = tensor(Value::from("F32"), &[1], 0, 4);
        tensor.as_map_mut().unwrap().push((Value::from("param_id"), Value::from(id)));
        let scalar = |name: &str, value| (Value::from(name), value);
        let scalars = Value::Map(vec![
            scalar(&format!("{id}.step"), step),
            scalar("on", cbor!({"Bool" => true}).unwrap()),
        ]);
        let tensors = Value::Map(vec![(Value::from(name), tensor)]);
        let content = cbor!({"tensors" => tensors, "scalars" => scalars}).unwrap();
        fs::write(path, pack(&content, 4)).unwrap();
    };
    record(&one, "a", 7, cbor!({"Int" => -3}).unwrap());
    record(&two, "b", u64::MAX, cbor!({"Float" => f64::NEG_INFINITY}).unwrap());
    let before = fs::read(&one).unwrap();
    let open = |path: &Path| safetensors_formats::open(path, &Options::new()).unwrap();
    write(&Rewrite::from_checkpoint(&open(&one)), &out).unwrap();
    assert_eq!(open(&out).metadata(), open(&one).metadata());
    assert_eq!(before.len(), fs::read(&out).unwrap().len());

    let (first, second) = (open(&one), open(&two));
    let joined = Rewrite::from_checkpoint(&first).merge(&second).rename(|name| format!("p.{name}"));
    write(&joined, &out).unwrap();
    let joined = open(&out);
    assert_eq!(joined.metadata()[IDS], r#"{"p.a":7,"p.b":18446744073709551615}"#);
    let scalars = r#"{"18446744073709551615.step":{"f64":{"value":"-inf","bits":"fff0000000000000"}},"7.step":{"i64":-3},"on":{"bool":true}}"#;
    assert_eq!(joined.metadata()[SCALARS], scalars);
    // An excluded tensor takes its id along. Ids without a tensor stay.
    let mut fewer = Rewrite::from_checkpoint(&joined).exclude(|name, _| name == "p.a");
    let ids = fewer.metadata_mut().get_mut(IDS).unwrap();
    assert_eq!(ids, r#"{"p.b":18446744073709551615}"#);
    *ids = r#"{"p.b":5,"path":6}"#.into();
    write(&fewer, &one).unwrap();
    assert_eq!(open(&one).metadata()[IDS], r#"{"p.b":5,"path":6}"#);
}

#[test]
fn tensors_that_burn_cannot_read_are_refused_before_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bpk");
    let refused = |rewrite: Rewrite<'_>| {
        let error = write(&rewrite, &path).unwrap_err();
        let Some(ErrorKind::NotForBurn { problem }) = error.other() else { panic!("{error}") };
        (error.tensor().map(str::to_owned), problem.clone())
    };
    for dtype in [Dtype::F8_E4M3, Dtype::C64] {
        let tensor = buf(dtype, vec![1], &vec![0; dtype.bits() as usize / 8]);
        let (tensor, problem) = refused(Rewrite::new().add("w", tensor).unwrap());
        assert_eq!((tensor.as_deref(), problem), (Some("w"), format!("its elements are {dtype}")));
    }
    let mut rewrite = Rewrite::new();
    rewrite.metadata_mut().insert(IDS.into(), r#"{"w":"x"}"#.into());
    assert!(refused(rewrite).1.contains("has no ids of parameters"));
    for wrong in [r#"{"step":3}"#, r#"{"rate":{"f64":{"value":"1","bits":"3f"}}}"#] {
        let mut rewrite = Rewrite::new();
        rewrite.metadata_mut().insert(SCALARS.into(), wrong.into());
        assert!(refused(rewrite).1.contains("has no typed scalars"));
    }
    let flat = buf(Dtype::U8, vec![1; 65], &[0]);
    let problem = refused(Rewrite::new().add("w", flat).unwrap());
    assert_eq!(problem, (Some("w".into()), "it has more than 64 dimensions".into()));
    let big = Made { shape: [(10 << 10) + 1, 1 << 20], stops: false };
    let problem = refused(Rewrite::new().add("w", big).unwrap());
    assert_eq!(problem, (Some("w".into()), "burn reads no tensor of more than 10 GiB".into()));
    let many = (0..11).fold(Rewrite::new(), |rewrite, i| {
        rewrite.add(i.to_string(), Made { shape: [10 << 10, 1 << 20], stops: false }).unwrap()
    });
    assert_eq!(refused(many).1, "burn reads no file of more than 100 GiB");
    assert!(names_in(dir.path()).is_empty());
}

/// Bytes that are made while they are written.
struct Made {
    shape: [usize; 2],
    stops: bool,
}

impl TensorSource for Made {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<(), Error> {
        sink(&[0])?;
        if self.stops {
            return Err(std::io::Error::other("the disk is gone").into());
        }
        sink(&vec![0; self.shape[0] - 1])
    }
}

#[test]
fn a_save_that_stops_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bpk");
    let of = |stops| Rewrite::new().add("w", Made { shape: [700, 1], stops }).unwrap();
    write(&of(false), &path).unwrap();
    let before = fs::read(&path).unwrap();
    let error = write(&of(true), &path).unwrap_err();
    assert_eq!(error.tensor(), Some("w"), "{error}");
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(names_in(dir.path()), ["a.bpk"]);

    // A source that is another one when the last byte is written.
    let model = dir.path().join("a.safetensors");
    safetensors_core::save(&model, tensors(), &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let rewrite = Rewrite::from_checkpoint(&checkpoint);
    let writer = burn::Writer::new(&rewrite).unwrap();
    let file = AtomicFile::create(&path, &SaveOptions::new()).unwrap();
    fs::OpenOptions::new().append(true).open(&model).unwrap().set_len(10_000).unwrap();
    writer.write(&file, |_| ()).unwrap_err();
    drop(file);
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn files_of_other_versions_are_read() {
    let named = |store: &str| cbor!({"Bool" => store}).unwrap();
    let content = cbor!({
        "tensors" => {
            "old" => tensor(Value::from("Bool"), &[1], 0, 1),
            "new" => tensor(named("U8"), &[1], 1, 2),
            "flex" => tensor(Value::from("Flex32"), &[], 256, 260),
        },
        "metadata" => {"format" => "burnpack"},
        "scalars" => {"step" => {"UInt" => 3}, "rate" => {"Float" => 0.5}},
        "later" => [1, 2],
    });
    let read = opened(pack(&content.unwrap(), 300)).unwrap();
    let scalars = r#"{"rate":{"f64":{"value":"0.5","bits":"3fe0000000000000"}},"step":{"u64":3}}"#;
    let metadata = [("format", "burnpack"), (SCALARS, scalars)];
    assert_eq!(
        read.metadata(),
        &Metadata::from(metadata.map(|(key, value)| (key.into(), value.into())))
    );
    for (name, value) in [("old", false), ("new", true)] {
        assert_eq!(read.tensor(name).unwrap().read().unwrap().into_vec::<bool>().unwrap(), [value]);
    }
    assert_eq!(read.tensor("flex").unwrap().dtype(), Dtype::F32);
    assert!(read.files()[0].safetensors().source().notes().is_empty());

    for (dtype, name) in [
        (cbor!({"QFloat" => {"value" => "Q8S"}}).unwrap(), "QFloat"),
        (Value::from("F8"), "F8"),
        (named("U32"), "Bool(U32)"),
    ] {
        let error = opened(one(tensor(dtype, &[1], 0, 4))).unwrap_err();
        let Some(ErrorKind::NoDtype { name: found }) = error.other() else { panic!("{error}") };
        assert_eq!((found.as_str(), error.tensor()), (name, Some("w")));
    }
}

#[test]
fn malformed_files_are_errors_that_name_the_tensor() {
    let f32 = |shape: &[u64], from, to| tensor(Value::from("F32"), shape, from, to);
    // More than 32 bits count.
    let far = if usize::BITS < 64 { "does not fit the memory" } else { "overflow" };
    for (tensor, says) in [
        (f32(&[2], 0, 4), "should have 8 bytes, but spans bytes 0 to 4"),
        (f32(&[2], 8, 0), "should have 8 bytes, but spans bytes 8 to 0"),
        (f32(&[1], 512, 516), "its data ends at byte"),
        (f32(&[1], u64::MAX - 3, u64::MAX), "should have 4 bytes"),
        (f32(&[1 << 31, 1 << 31, 4], 0, 8), "overflow"),
        (f32(&[u64::MAX, 2], 0, 8), far),
    ] {
        let error = opened(one(tensor)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!((error.tensor(), error.file()), (Some("w"), Some("a.bpk")));
    }
    let error = opened(one(f32(&[1; 65], 0, 4))).unwrap_err();
    assert!(error.to_string().contains("at most 64 dimensions"), "{error}");
    let two = |a: Value, b: Value| {
        let pairs = vec![(Value::from("a"), a), (Value::from("b"), b)];
        opened(pack(&cbor!({"tensors" => Value::Map(pairs)}).unwrap(), 512)).unwrap_err()
    };
    let error = two(f32(&[2], 0, 8), f32(&[2], 4, 12));
    assert!(matches!(error.other(), Some(ErrorKind::TensorsOverlap { .. })), "{error}");
    // Equal bytes as other numbers are no tied weight.
    let error = two(f32(&[2], 0, 8), tensor(Value::from("I32"), &[2], 0, 8));
    assert!(matches!(error.other(), Some(ErrorKind::TensorsOverlap { .. })), "{error}");
    for (from, to) in [(0, 4), (256, 260)] {
        let pairs =
            vec![(Value::from("a"), f32(&[1], 0, 4)), (Value::from("a"), f32(&[1], from, to))];
        let file = pack(&cbor!({"tensors" => Value::Map(pairs)}).unwrap(), 512);
        let error = opened(file).unwrap_err();
        assert!(error.to_string().contains(r#"two entries are named \"a\""#), "{error}");
    }
    let twice = vec![(Value::from("k"), Value::from("1")), (Value::from("k"), Value::from("2"))];
    let content = cbor!({"tensors" => {}, "metadata" => Value::Map(twice)}).unwrap();
    let error = opened(pack(&content, 0)).unwrap_err();
    assert!(error.to_string().contains("two entries"), "{error}");
}

#[test]
fn damaged_and_hostile_files_neither_panic_nor_take_memory() {
    let content = cbor!({
        "tensors" => {"w" => tensor(Value::from("F32"), &[2, 2], 0, 16)},
        "metadata" => {"note" => "x"},
    });
    let file = pack(&content.unwrap(), 16);
    assert_eq!(opened(file.clone()).unwrap().len(), 1);
    (6..file.len()).for_each(|len| _ = opened(&file[..len]).unwrap_err());
    for at in 4..file.len() - 16 {
        for byte in [0x00, 0x7f, 0x9b, 0xbf, 0xff] {
            let mut damaged = file.clone();
            damaged[at] = byte;
            let _ = opened(damaged);
        }
    }
    let of = |content: &[u8]| {
        let len = (content.len() as u32).to_le_bytes();
        opened([&b"NRUB\x01\0"[..], &len, content].concat()).unwrap_err()
    };
    // Lengths that are not there, nesting without end, and bytes after the content.
    let key = b"\xa1\x67tensors";
    for claim in [
        &b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0x81; 100_000],
        b"\xa0\x00",
    ] {
        let error = of(&[key, claim].concat());
        assert!(matches!(error.other(), Some(ErrorKind::BadRecord { .. })), "{error}");
    }
    let error = opened(&b"NRUB\x01\0\xff\xff\xff\x00"[..]).unwrap_err();
    assert!(error.to_string().contains("are left of the file"), "{error}");
    let error = opened(&b"NRUB\x02\0\0\0\0\0"[..]).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");

    // Many entries of a few bytes.
    let mut many = b"\xa2\x67tensors\xa0\x68metadata\xba\x00\x03\x0d\x41".to_vec();
    (0..200_001_u32).for_each(|i| {
        many.push(0x64);
        many.extend([i >> 18, i >> 12, i >> 6, i].map(|part| (part % 64) as u8 + 48));
        many.push(0x60);
    });
    let error = of(&many);
    assert!(error.to_string().contains("at most 200000 entries"), "{error}");

    let mut limits = Limits::default();
    (limits.members, limits.directory_bytes) = (0, 200);
    let options = Options::new().limits(limits);
    let error = TensorFile::from_source(file, "a.bpk", &options).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::TooManyMembers { .. })), "{error}");
    let long = pack(&cbor!({"tensors" => {}, "metadata" => {"k" => "x".repeat(200)}}).unwrap(), 0);
    let error = TensorFile::from_source(long, "a.bpk", &options).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::DirectoryTooLong { .. })), "{error}");
}

/// A long name that is referred to by each of its short names, and an id of each.
#[test]
fn other_names_of_one_tensor_do_not_repeat_its_name_without_end() {
    for param_id in [None, Some(7)] {
        let mut described = tensor(Value::from("U8"), &[1], 0, 1);
        if let (Some(id), Some(map)) = (param_id, described.as_map_mut()) {
            map.push((Value::from("param_id"), Value::from(id)));
        }
        let names = (0..5000).map(|i| format!("z{i}")).chain(["a".repeat(50_000)]);
        let tensors = names.map(|name| (Value::from(name), described.clone())).collect();
        let content = Value::Map(vec![(Value::from("tensors"), Value::Map(tensors))]);
        let error = opened(pack(&content, 1)).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::OutOfProportion { .. })), "{error}");
    }
}
