//! The reader for candle's own functions.

use std::io::{Cursor, Read, Seek, SeekFrom};

use candle_core::Device;
use candle_core::quantized::GgmlDType::{Q4_0, Q8_0};
use candle_core::quantized::gguf_file::{Content, Value};
use safetensors_candle::gguf::GgufFile;

use super::{assert_same, far, of_bytes, open, written};

/// A file of 20 MiB.
fn a_model() -> Vec<u8> {
    let names: Vec<_> = (0..36).map(|i| format!("blk.{i}.weight")).collect();
    let tensors: Vec<_> = (0..36)
        .map(|i| {
            if i % 9 == 8 { of_bytes(Q4_0, &[4096, 1024]) } else { of_bytes(Q8_0, &[i + 1, 4096]) }
        })
        .collect();
    let tokens = Value::Array((0..40_000).map(|i| Value::String(format!("token {i}"))).collect());
    let metadata = [
        ("general.architecture", &Value::String("llama".into())),
        ("llama.rope.freq_base", &Value::F32(0.1)),
        ("tokenizer.ggml.tokens", &tokens),
    ];
    let named: Vec<_> = names.iter().map(String::as_str).zip(&tensors).collect();
    written(&metadata, &named)
}

#[test]
fn the_content_is_candles_own_and_all_its_tensors_are_read() {
    let bytes = a_model();
    let mut own = Cursor::new(&bytes);
    let expected = Content::read(&mut own).unwrap();
    let near = open(&bytes);
    let source = far(bytes.clone());
    let far = GgufFile::from_source(source.clone(), "far.gguf").unwrap();
    // The header has 700 KiB. It is read twice, by calls of a MiB or a window.
    let opened = source.take_reads().len();
    assert!(opened < 10, "{opened} calls to open");

    let contents = [near.content().unwrap(), far.content().unwrap()];
    let mut near_reader = near.reader();
    let mut far_reader = far.reader();
    for content in &contents {
        assert_eq!(content.tensor_data_offset, expected.tensor_data_offset);
        assert_eq!(content.tensor_infos.len(), expected.tensor_infos.len());
        let keys = |content: &Content| {
            let mut keys: Vec<_> =
                content.metadata.iter().map(|(key, value)| format!("{key} {value:?}")).collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!(keys(content), keys(&expected));
    }
    source.take_calls();
    let mut names: Vec<_> = expected.tensor_infos.keys().collect();
    names.sort();
    for name in names {
        let same = expected.tensor(&mut own, name, &Device::Cpu).unwrap();
        let found = contents[0].tensor(&mut near_reader, name, &Device::Cpu).unwrap();
        assert_same(&found, &same);
        assert_same(&contents[1].tensor(&mut far_reader, name, &Device::Cpu).unwrap(), &same);
    }
    // Windows of a MiB, and a call for each of the four tensors that are larger than one.
    let calls = source.take_reads().len();
    assert!(calls < 30, "{calls} calls for 36 tensors");
}

#[test]
fn any_part_is_read_as_from_memory() {
    let bytes = a_model();
    let file = open(&bytes);
    let (mut found, mut expected) = (file.reader(), Cursor::new(&bytes));
    let window = 256 << 10;
    for at in
        [0, 1, window - 1, window, 5 * window + 3, bytes.len() - 1, bytes.len(), bytes.len() + 9]
    {
        for len in [0, 1, 17, window - 1, window, window + 1, 9 << 20] {
            let read = |reader: &mut dyn ReadSeek| {
                assert_eq!(reader.seek(SeekFrom::Start(at as u64)).unwrap(), at as u64);
                let mut part = Vec::new();
                reader.take(len as u64).read_to_end(&mut part).unwrap();
                (part, reader.stream_position().unwrap())
            };
            assert!(read(&mut found) == read(&mut expected), "{len} bytes at {at}");
        }
    }
    assert_eq!(found.seek(SeekFrom::End(-4)).unwrap(), bytes.len() as u64 - 4);
    assert!(found.seek(SeekFrom::Current(-(bytes.len() as i64))).is_err());
    let mut all = Vec::new();
    file.reader().read_to_end(&mut all).unwrap();
    assert!(all == bytes);
}

trait ReadSeek: Read + Seek {}

impl<R: Read + Seek> ReadSeek for R {}
