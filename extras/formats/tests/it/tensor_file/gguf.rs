//! GGUF files.

use safetensors_core::io::Requests;
use safetensors_core::{Checkpoint, Dtype, ReadAt};
use safetensors_formats::{Format, Options, TensorFile};
use safetensors_testing::read_at::NotingSource;

use super::{assert_fixture, fixture, refused};

#[test]
fn plain_types_are_exact_and_keys_are_metadata() {
    let checkpoint = assert_fixture("gguf/plain.gguf", &Options::new());
    let file = checkpoint.files()[0].safetensors().source();
    assert_eq!((file.format(), file.all_stored().len()), (Format::Gguf, 0));
    assert_eq!(file.file_len(), std::fs::metadata(fixture("gguf/plain.gguf")).unwrap().len());
    let metadata = checkpoint.metadata();
    for (key, value) in [
        ("general.architecture", "llama"),
        ("general.name", "a model"),
        ("of.u8", "255"),
        ("of.i8", "-128"),
        ("of.u16", "65535"),
        ("of.i16", "-32768"),
        ("of.u32", "4294967295"),
        ("of.i32", "-2147483648"),
        ("of.u64", "18446744073709551615"),
        ("of.i64", "-9223372036854775808"),
        ("of.f32", "0.1"),
        ("of.f64", "0.1"),
        ("of.bool", "true"),
        ("of.texts", r#"["a","b"]"#),
        ("of.numbers", "[1,2,3]"),
    ] {
        assert_eq!(metadata.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(!metadata.contains_key("tokenizer.ggml.tokens"));
}

#[test]
fn dequantised_numbers_equal_the_reference() {
    let path = fixture("gguf/quantised.gguf");
    let expected = Checkpoint::open(path.with_extension("safetensors")).unwrap();
    let checkpoint = safetensors_formats::open(&path, &Options::new().dequantize(true)).unwrap();
    let file = checkpoint.files()[0].safetensors().source();
    let mut readable = 0;
    for tensor in checkpoint.tensors() {
        let stored = file.stored(tensor.name()).unwrap();
        assert_eq!(tensor.name(), format!("of.{}", stored.type_name));
        assert_eq!((tensor.dtype(), stored.is_quantised), (Dtype::F32, stored.is_readable));
        if !stored.is_readable {
            let error = tensor.read().unwrap_err().to_string();
            let says = format!("quantised as {}, which cannot be dequantised", stored.type_name);
            assert!(error.contains(&says), "{error}");
            continue;
        }
        readable += 1;
        let numbers = tensor.read().unwrap();
        let same = expected.tensor(tensor.name()).unwrap();
        assert_eq!(tensor.shape(), same.shape());
        assert!(numbers.bytes() == same.read().unwrap().bytes(), "{}", tensor.name());
        // Any part of it, also one that begins inside a block.
        let (start, end) = (5, tensor.shape()[1] - 3);
        let part = tensor.slice((.., start..end)).unwrap().read().unwrap();
        assert_eq!(part.bytes(), &numbers.bytes()[start * 4..end * 4]);
    }
    assert_eq!(readable, 24);
}

#[test]
fn nothing_is_dequantised_by_default() {
    let path = fixture("gguf/quantised.gguf");
    let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
    let tensor = checkpoint.tensor("of.Q4_K").unwrap();
    let stored = checkpoint.files()[0].safetensors().source().stored("of.Q4_K").unwrap();
    assert_eq!((stored.byte_len, tensor.shape()), (144, &[1, 256][..]));
    assert!(stored.is_quantised && !stored.is_readable);
    let error = tensor.read().unwrap_err().to_string();
    assert!(error.contains("\"of.Q4_K\": the tensor is quantised as Q4_K;"), "{error}");
}

#[test]
fn blocks_are_read_as_their_bytes() {
    let path = fixture("gguf/quantised.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let listed = safetensors_formats::open(&path, &Options::new()).unwrap();
    let listed = listed.files()[0].safetensors().source();
    // Whether numbers are asked for, too, makes no difference.
    for options in [Options::new().blocks(true), Options::new().blocks(true).dequantize(true)] {
        let checkpoint = safetensors_formats::open(&path, &options).unwrap();
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.all_stored().collect::<Vec<_>>(), listed.all_stored().collect::<Vec<_>>());
        let mut places = Vec::new();
        for tensor in checkpoint.tensors() {
            let stored = file.stored(tensor.name()).unwrap();
            let (rows, row) = (stored.shape[0], stored.byte_len as usize / stored.shape[0]);
            assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::U8, &[rows, row][..]));
            let blocks = tensor.read().unwrap().into_vec::<u8>().unwrap();
            // The last place, because a longer tensor before may hold the same bytes.
            let place = bytes.windows(blocks.len()).rposition(|window| window == blocks);
            places.push(place.unwrap());
            assert_eq!(tensor.slice((.., 1..)).unwrap().read().unwrap().bytes(), &blocks[1..]);
        }
        assert!(places.len() > 23 && places.is_sorted(), "{places:?}");
    }
    // Plain tensors do not change.
    let plain = safetensors_formats::open(fixture("gguf/plain.gguf"), &Options::new().blocks(true));
    let plain = plain.unwrap();
    assert_eq!(plain.tensor("of.f32").unwrap().dtype(), Dtype::F32);
}

/// A file with a key and a tensor.
struct Gguf {
    magic: &'static [u8],
    version: u32,
    tensors: u64,
    keys: u64,
    key: Vec<u8>,
    tensor: Vec<u8>,
    data: usize,
}

/// A text with its length.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A tensor of the header.
fn tensor(dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text("w");
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

impl Default for Gguf {
    fn default() -> Self {
        let key = [text("k"), 4_u32.to_le_bytes().to_vec(), 7_u32.to_le_bytes().to_vec()].concat();
        Self {
            magic: b"GGUF",
            version: 3,
            tensors: 1,
            keys: 1,
            key,
            tensor: tensor(&[2], 0, 0),
            data: 8,
        }
    }
}

impl Gguf {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.keys.to_le_bytes());
        bytes.extend(&self.key);
        bytes.extend(&self.tensor);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend((0..self.data).map(|i| i as u8));
        bytes
    }
}

/// Returns the key `k` with an array of these values, which have this type.
fn array(kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    let start = [text("k"), 9_u32.to_le_bytes().to_vec(), kind.to_le_bytes().to_vec()];
    [start.concat(), (values.len() as u64).to_le_bytes().to_vec(), values.concat()].concat()
}

/// Returns the metadata that the key becomes.
fn metadata(key: Vec<u8>) -> Option<String> {
    let file = Gguf { key, ..Gguf::default() }.bytes();
    let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    checkpoint.metadata().get("k").cloned()
}

#[test]
fn the_source_is_accessible_and_reports_that_its_calls_wait() {
    let tokens: Vec<_> = (0..9000).map(|i| text(&format!("token {i}"))).collect();
    let key = array(8, &tokens);
    let bytes = Gguf { key, ..Gguf::default() }.bytes();
    assert!(bytes.len() > 100_000);
    let far = NotingSource::far(bytes.clone(), Requests::new(1 << 20, 3));
    let file = TensorFile::from_source(far.clone(), "far.gguf", &Options::new()).unwrap();
    let calls = far.take_reads().len();
    let mut read = vec![0; bytes.len()];
    file.source().read_exact_at(&mut read, 0).unwrap();
    assert_eq!((read, file.requests()), (bytes, file.source().requests()));
    assert_eq!(file.requests(), Some(Requests::new(1 << 20, 3)));
    assert!(calls < 8, "{calls} calls for a header of 140 KB");
}

#[test]
fn arrays_become_metadata_if_they_are_short_with_all_that_is_in_them() {
    let bytes = |count: usize| vec![vec![7_u8]; count];
    let sevens = |count: usize| format!("[{}]", vec!["7"; count].join(","));
    assert_eq!(metadata(array(0, &bytes(64))), Some(sevens(64)));
    assert_eq!(metadata(array(0, &bytes(65))), None);
    assert_eq!(metadata(array(0, &bytes(100_000))), None);

    // Without the head of the key: an array in an array.
    let inner = |count: usize| array(0, &bytes(count))[text("k").len() + 4..].to_vec();
    let nested = [sevens(30), sevens(32)].join(",");
    assert_eq!(metadata(array(9, &[inner(30), inner(32)])), Some(format!("[{nested}]")));
    assert_eq!(metadata(array(9, &[inner(31), inner(32)])), None);
    assert_eq!(
        metadata(array(9, &vec![inner(0); 64])),
        Some(format!("[{}]", ["[]"; 64].join(",")))
    );
    assert_eq!(metadata(array(9, &vec![inner(0); 65])), None);
    assert_eq!(metadata(array(9, &vec![inner(64); 64])), None);
}

#[test]
fn each_wrong_field_is_named() {
    let fine = Gguf::default().bytes();
    assert!(TensorFile::from_source(fine, "a file", &Options::new()).unwrap().has("w"));
    let key = |kind: u32, value: &[u8]| {
        let mut key = text("general.alignment");
        key.extend(kind.to_le_bytes());
        key.extend(value);
        key
    };
    let array = |count: u64| {
        let mut key = text("k");
        key.extend(9_u32.to_le_bytes());
        key.extend(8_u32.to_le_bytes());
        key.extend(count.to_le_bytes());
        key
    };
    let of = |change: fn(&mut Gguf)| {
        let mut file = Gguf::default();
        change(&mut file);
        file
    };
    let with_key = |key: Vec<u8>| Gguf { key, ..Gguf::default() };
    let with_tensor = |tensor: Vec<u8>| Gguf { tensor, ..Gguf::default() };
    let nested = [
        text("k"),
        9_u32.to_le_bytes().to_vec(),
        [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat().repeat(101),
    ];
    for (file, says) in [
        (of(|file| file.version = 1), "version 1 is unknown"),
        (of(|file| file.version = 3_u32.swap_bytes()), "big-endian"),
        (of(|file| file.tensors = u64::MAX), "over the limit of 500000"),
        (of(|file| file.keys = u64::MAX), "over the limit of 500000"),
        (of(|file| file.tensors = 400_000), "the file ends inside the header"),
        (of(|file| file.data = 7), "its data ends at byte 104, but the file has 103"),
        (with_key(key(4, &3_u32.to_le_bytes())), "power of two"),
        (with_key(key(4, &0_u32.to_le_bytes())), "power of two"),
        (with_key(key(7, &[2])), "a boolean is 2"),
        (with_key(key(13, &[2])), "the type 13 of a value"),
        (with_key(array(u64::MAX)), "over the limit of 67108864 bytes"),
        (with_key(u64::MAX.to_le_bytes().to_vec()), "over the limit of 67108864 bytes"),
        (with_key(nested.concat()), "nested deeper than the limit of 100"),
        (with_tensor(tensor(&[2], 2, 0)), "not whole blocks of Q4_0"),
        (with_tensor(tensor(&[2; 9], 0, 0)), "9 dimensions"),
        (with_tensor(tensor(&[1 << 33, 1 << 33], 0, 0)), "does not fit"),
        (with_tensor(tensor(&[2], 0, u64::MAX)), "its data ends at byte 18446744073709551615"),
        (with_tensor(tensor(&[2], 0, 1 << 62)), "its data ends at"),
    ] {
        let error = refused(&file.bytes(), &Options::new());
        assert!(error.contains(says), "{says}: {error}");
    }
    let twice = |offset| Gguf {
        tensors: 2,
        tensor: [tensor(&[2], 0, 0), tensor(&[2], 0, offset)].concat(),
        data: 100,
        ..Gguf::default()
    };
    assert!(refused(&twice(32).bytes(), &Options::new()).contains("duplicate tensor name"));
    let mut overlap = twice(4);
    let name = overlap.tensor.len() / 2 + 8;
    overlap.tensor[name] = b'v';
    assert!(refused(&overlap.bytes(), &Options::new()).contains("its data overlaps that of \"w\""));
}

/// The settings next to it may describe the model that it was made of.
#[test]
fn no_settings_make_codes_of_integers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::copy(fixture("gguf/plain.gguf"), &path).unwrap();
    let config = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
}
