//! The example that slime and ModelExpress were run with: its bytes and its checksums.

use safetensors_core::Dtype;
use safetensors_delta::{ChecksumFormat, Encoding};

use crate::support::{Parts, Scratch, Tensors, content, quick};

fn tensors(w: [u16; 6], b: [f32; 4]) -> Tensors {
    let halves = w.map(u16::to_le_bytes).concat();
    let floats = b.map(f32::to_le_bytes).concat();
    Tensors::from([
        ("a.w".into(), (Dtype::BF16, vec![2, 3], halves)),
        ("b".into(), (Dtype::F32, vec![4], floats)),
    ])
}

/// 0 to 5, and ones.
fn old() -> Tensors {
    tensors([0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0], [1.0; 4])
}

/// `a.w[0, 1]` is 2.5, and `b[3]` is -7.
fn new() -> Tensors {
    tensors([0, 0x4020, 0x4000, 0x4040, 0x4080, 0x40a0], [1.0, 1.0, 1.0, -7.0])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_equal_slime_and_modelexpress() {
    let scratch = Scratch::new(&old());
    let xor = scratch.make("xor", &new(), &quick()).unwrap();
    assert_eq!(hex(&content(&xor, "a.w")), "0000a07f0000000000000000");
    assert_eq!(hex(&content(&xor, "b")), "000000000000000000000000000060ff");
    let options = quick().encoding(Encoding::Overwrite);
    let overwrite = scratch.make("overwrite", &new(), &options).unwrap();
    assert_eq!(hex(&content(&overwrite, "a.w")), "0200000002000000030000002040");
    assert_eq!(hex(&content(&overwrite, "b")), "020000000e0000000f000000e0c0");
}

#[test]
fn checksums_equal_slime_and_modelexpress() {
    let scratch = Scratch::new(&old());
    let expected = [
        (ChecksumFormat::Adler32, "0c4c02c1", "183503de"),
        (
            ChecksumFormat::Xxh3,
            "748dfa0e0e93d69467aa7e4973fbe245",
            "cc8f961361f4610cee24ff82315ee620",
        ),
        (ChecksumFormat::Blake3, "3142dcc5b176bbdd", "3756de3cf961cae4"),
    ];
    for (format, w, b) in expected {
        let name = format.to_string();
        let delta = scratch.make(&name, &new(), &quick().checksums(format)).unwrap();
        let file = scratch.path(&name).join(crate::support::SHARD);
        let file = safetensors_core::io::FileSource::open(&file).unwrap();
        let file = safetensors_core::SafeTensors::from_source(file).unwrap();
        // There is nothing else next to the checksums.
        assert_eq!(file.metadata().len(), 2, "{name}");
        assert!(file.metadata()["a.w"].starts_with(w), "{name}");
        assert!(file.metadata()["b"].starts_with(b), "{name}");
        assert_eq!(delta.checksum_format(), format);
        assert_eq!(scratch.apply(&[&name]).unwrap(), new());
    }
}

#[test]
fn a_delta_of_modelexpress_is_applied() {
    let scratch = Scratch::new(&old());
    // The frame that PyPI `zstandard` writes, with a window of its content's size.
    let frame = *b"\x28\xb5\x2f\xfd\x20\x0c\x61\0\0\0\0\xa0\x7f\0\0\0\0\0\0\0\0";
    let mut parts = Parts::new("xor", &[("a.w", &frame, &[])]);
    parts.metadata["checksum_format"] = "adler32".into();
    parts.checksums.insert("a.w".into(), "0c4c02c1".into());
    scratch.write_delta("theirs", &parts);
    let mut expected = old();
    expected.insert("a.w".into(), new()["a.w"].clone());
    assert_eq!(scratch.apply(&["theirs"]).unwrap(), expected);
}
