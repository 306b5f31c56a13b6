//! Tensors and metadata as a file.

use std::fs;

use safetensors_core::{
    Dtype, ErrorKind as CoreKind, LoadOptions, TensorBuf, TensorSource, TensorView,
};
use safetensors_formats::ErrorKind;
use safetensors_formats::gguf::{Type, Value, Writer};

use super::{numbers, write, written};

#[test]
fn everything_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let values = numbers("values", 3 * 64);
    let view = TensorView::from_slice(&[3, 64], &values).unwrap();
    let mut writer = Writer::new();
    writer.metadata("general.architecture", "test");
    writer.metadata("of.text", "replaced");
    for (key, value) in [
        ("of.text", Value::from("ünï")),
        ("of.u32", u32::MAX.into()),
        ("of.i32", i32::MIN.into()),
        ("of.u64", u64::MAX.into()),
        ("of.f32", 0.1_f32.into()),
        ("of.bool", true.into()),
        ("of.numbers", vec![-1, 2].into()),
        ("of.texts", vec!["a".to_owned(), String::new()].into()),
    ] {
        writer.metadata(key, value);
    }
    for kind in Type::WRITTEN {
        writer.add(format!("of.{kind}"), kind, view).unwrap();
    }
    writer.add("scalar", Type::F32, TensorBuf::from_vec(vec![], vec![2.0_f32]).unwrap()).unwrap();
    writer
        .add("empty", Type::Q8_0, TensorBuf::from_vec(vec![0, 32], vec![0.0_f32; 0]).unwrap())
        .unwrap();
    let read = written(&writer, &path);
    for (key, value) in [
        ("general.architecture", "test"),
        ("of.text", "ünï"),
        ("of.u32", "4294967295"),
        ("of.i32", "-2147483648"),
        ("of.u64", "18446744073709551615"),
        ("of.f32", "0.1"),
        ("of.bool", "true"),
        ("of.numbers", "[-1,2]"),
        ("of.texts", r#"["a",""]"#),
    ] {
        assert_eq!(read.metadata().get(key).map(String::as_str), Some(value), "{key}");
    }
    let file = read.files()[0].safetensors().source();
    // The largest magnitude of a block is below 1, so this is half a step, and the rounding of the
    // scale to F16.
    for (kind, dtype, most) in [
        ("F32", Dtype::F32, 0.0),
        ("F16", Dtype::F16, 2.5e-4),
        ("BF16", Dtype::BF16, 2e-3),
        ("Q8_0", Dtype::F32, 0.5 / 127.0 + 5e-4),
        ("Q4_0", Dtype::F32, 1.0 / 8.0 + 5e-4),
    ] {
        let tensor = read.tensor(&format!("of.{kind}")).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[3, 64][..]));
        let stored = file.stored(tensor.name()).map(|stored| stored.type_name.clone());
        assert_eq!(stored.as_deref(), kind.starts_with('Q').then_some(kind));
        let back = tensor
            .read_with(&LoadOptions::new().all_as(Dtype::F32))
            .unwrap()
            .into_vec::<f32>()
            .unwrap();
        let worst = back.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= most, "{kind}: {worst}");
        assert!(most == 0.0 || worst > most / 10.0, "{kind}: {worst}");
    }
    assert_eq!(read.tensor("scalar").unwrap().read().unwrap().into_vec::<f32>().unwrap(), [2.0]);
    assert_eq!(read.tensor("empty").unwrap().shape(), [0, 32]);
    let first = fs::read(&path).unwrap();
    write(&writer, &path).unwrap();
    assert!(
        first == fs::read(&path).unwrap() && first.len().is_multiple_of(32),
        "not the same bytes"
    );
}

#[test]
fn tensors_and_metadata_that_gguf_cannot_hold_are_refused() {
    let values = vec![1.0_f32; 66];
    let floats = |shape: &[usize]| {
        TensorBuf::from_vec(shape.to_vec(), values[..shape.iter().product()].to_vec()).unwrap()
    };
    let refused = |name: &str, kind, source: TensorBuf| {
        let error = Writer::new().add(name, kind, source).unwrap_err();
        assert_eq!(error.tensor(), Some(name));
        match error.other() {
            Some(ErrorKind::NotForGguf { problem }) => problem.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        refused("w", Type::Q8_0, floats(&[2, 33])),
        "rows of 33 elements are not whole blocks of Q8_0, which have 32"
    );
    assert_eq!(refused("w", Type::F32, floats(&[1, 1, 1, 1, 2])), "it has 5 dimensions, over 4");
    let q4_k = Type::from_id(12).unwrap();
    let long = TensorBuf::from_vec(vec![256], vec![0.0_f32; 256]).unwrap();
    assert_eq!(refused("w", q4_k, long), "Q4_K cannot be written");
    let long = "n".repeat(64);
    assert_eq!(refused(&long, Type::F32, floats(&[1])), "a name has 63 bytes at most");
    let integers = TensorBuf::from_vec(vec![2], vec![1_i64, 2]).unwrap();
    assert_eq!(refused("ids", Type::F32, integers), "its elements are I64, not floats");

    let mut writer = Writer::new();
    writer.add("w", Type::F32, floats(&[2])).unwrap();
    let error = writer.add("w", Type::F16, floats(&[2])).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::DuplicateTensor), "{error}");
    writer.metadata("general.alignment", 64_u32);
    let dir = tempfile::tempdir().unwrap();
    let error = write(&writer, &dir.path().join("a.gguf")).unwrap_err();
    assert!(error.to_string().contains("general.alignment is always 32 here"), "{error}");
}

#[test]
fn numbers_that_do_not_fit_are_errors_and_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    fs::write(&path, "old").unwrap();
    for kind in [Type::Q8_0, Type::Q4_0, Type::F16] {
        for wrong in [f32::NAN, f32::NEG_INFINITY, 1e30] {
            // Beyond the first piece that is quantised at once.
            let mut values = vec![1.0_f32; 3 << 16];
            values[(2 << 16) + 77] = wrong;
            let mut writer = Writer::new();
            writer.add("w", kind, TensorBuf::from_vec(vec![3, 1 << 16], values).unwrap()).unwrap();
            let done = write(&writer, &path);
            if kind == Type::F16 && !wrong.is_finite() {
                done.unwrap();
                fs::write(&path, "old").unwrap();
                continue;
            }
            let error = done.unwrap_err();
            assert_eq!(error.tensor(), Some("w"));
            assert!(error.to_string().contains("131149"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), b"old");
        }
    }
}

/// A source of 64 numbers that passes these bytes to the sink one by one. If it is `deaf`, it goes
/// on after an error.
struct Given {
    bytes: Vec<u8>,
    deaf: bool,
}

impl TensorSource for Given {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &[2, 32]
    }

    fn write_to(
        &self,
        sink: &mut safetensors_core::save::Sink<'_>,
    ) -> safetensors_core::Result<()> {
        let mut given = self.bytes.iter().map(|&byte| sink(&[byte]));
        if self.deaf {
            given.for_each(drop);
            return Ok(());
        }
        given.try_for_each(|given| given)
    }
}

/// Also where they go on after an error.
#[test]
fn sources_must_write_exactly_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let nan = [&[0; 252][..], &f32::NAN.to_le_bytes()].concat();
    for kind in [Type::F32, Type::F16, Type::Q8_0] {
        let fits_nan = kind != Type::Q8_0;
        for (bytes, fits) in [
            (vec![], false),
            (vec![0; 255], false),
            (vec![0; 256], true),
            (vec![0; 257], false),
            (vec![0; 512], false),
            (nan.clone(), fits_nan),
            (nan.repeat(2), false),
        ] {
            for deaf in [false, true] {
                let mut writer = Writer::new();
                writer.add("w", kind, Given { bytes: bytes.clone(), deaf }).unwrap();
                let done = write(&writer, &path);
                assert_eq!(done.is_ok(), fits, "{kind} {}: {done:?}", bytes.len());
                if let Err(error) = done
                    && (deaf, fits_nan, bytes.ends_with(&[0])) == (false, true, true)
                {
                    assert!(matches!(error.kind(), CoreKind::SourceLength { .. }), "{error}");
                }
            }
        }
    }
}
