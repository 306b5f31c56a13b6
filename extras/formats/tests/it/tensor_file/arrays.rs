//! Arrays of NumPy and other values in files of PyTorch.

use safetensors_core::{Checkpoint, LoadOptions};
use safetensors_formats::{ErrorKind, Options, TensorFile};

use super::pytorch::legacy;
use super::{assert_fixture, fixture, refused};

#[test]
fn arrays_are_tensors_in_any_order() {
    for name in ["arrays.pt", "arrays_protocol_5.pt", "arrays_legacy.pt"] {
        let checkpoint = assert_fixture(&format!("pytorch/{name}"), &Options::new());
        assert_eq!(checkpoint.aliases().count(), 0);
        let part = checkpoint.tensor("big_fortran").unwrap().slice((1, 1..3)).unwrap();
        assert_eq!(part.read().unwrap().into_vec::<f64>().unwrap(), [4.0, 5.0]);
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.notes(), ["skipped: 1 text"]);
    }
}

#[test]
fn arrays_that_cannot_be_read_are_listed_by_name() {
    let path = fixture("pytorch/refused/arrays.pt");
    let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
    let file = checkpoint.files()[0].safetensors().source();
    let kinds: Vec<_> =
        file.all_stored().map(|(name, stored)| (name, stored.type_name.as_str())).collect();
    let masked = kinds.iter().find(|(name, _)| *name == "masked").unwrap().1;
    assert!(masked.ends_with("._mareconstruct"), "{masked}");
    assert_eq!(
        kinds,
        [
            ("dates", "datetime64"),
            ("masked", masked),
            ("objects", "object"),
            ("typed", "array.array"),
            ("wide", "complex128"),
        ]
    );
    for (name, _) in kinds {
        assert!(checkpoint.tensor(name).unwrap().read().is_err(), "{name}");
    }
    assert!(checkpoint.read_all(&LoadOptions::new()).is_err());
    let fine = checkpoint.tensor("fine").unwrap().read().unwrap();
    assert_eq!(fine.into_vec::<f32>().unwrap(), [1.0]);
}

/// A dictionary with an array of this shape, type and these bytes under `w`.
fn array(shape: &[u8], kind: &str, order: &str, bytes: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[b'U', text.len() as u8][..], text.as_bytes()].concat();
    let dtype = [b"cnumpy\ndtype\n", &text(kind)[..], b"\x85R(K\x03", &text(order), b"NNNtb"];
    let made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R";
    let data = [&[b'C', bytes.len() as u8][..], bytes].concat();
    let state = [b"(K\x01", shape, &dtype.concat(), b"\x89", &data, b"tb"].concat();
    [b"}", &text("w")[..], made, &state, b"s."].concat()
}

fn numbers(pickle: &[u8]) -> Vec<f32> {
    let file = legacy(pickle, b"\x80\x02].", b"");
    let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    checkpoint.tensor("w").unwrap().read().unwrap().into_vec().unwrap()
}

#[test]
fn an_array_by_hand_is_read_and_each_wrong_field_is_named() {
    let [one, two] = [1.0_f32, 2.0].map(f32::to_be_bytes);
    let big = [one, two].concat();
    assert_eq!(numbers(&array(b"K\x02\x85", "f4", ">", &big)), [1.0, 2.0]);
    // More than 32 bits count.
    let far = if usize::BITS < 64 { "the shape of a tensor" } else { "does not fit 64 bits" };
    for (shape, kind, bytes, says) in [
        (&b"K\x03\x85"[..], "f4", &big[..], "of shape [3] and type >f4 has 8 bytes"),
        (b"K\x01\x85", "f4", &big, "of shape [1]"),
        (b"N", "f4", &big, "the shape of a tensor is not a tuple of numbers"),
        (b"J\xff\xff\xff\xff\x85", "f4", &big, "the shape of a tensor"),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x04\x86", "f4", &big, far),
        (
            b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x87",
            "f4",
            &big,
            "the size of a NumPy array does not fit 64 bits",
        ),
    ] {
        let file = legacy(&array(shape, kind, ">", bytes), b"\x80\x02].", b"");
        let error = refused(&file, &Options::new());
        assert!(error.contains(says), "{error}");
    }
    // More bytes than 64 bits count, and the bytes of the file.
    let huge = array(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "f8", "<", &big);
    refused(&legacy(&huge, b"\x80\x02].", b""), &Options::new());
}

/// Such as `bfloat16` of the package ml_dtypes.
#[test]
fn an_array_of_an_unknown_type_is_listed_by_name() {
    let dtype = b"cnumpy\ndtype\ncml_dtypes\nbfloat16\n\x85R";
    let state = [b"(K\x01K\x01\x85", &dtype[..], b"\x89C\x02abtb"].concat();
    let made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R";
    let scalar = [b"cnumpy.core.multiarray\nscalar\n", &dtype[..], b"C\x02ab\x86R"].concat();
    let buffer = b"cnumpy.core.numeric\n_frombuffer\n(C\x02ab";
    let of_order =
        |dtype: &[u8], order: &[u8]| [&buffer[..], dtype, b"K\x01\x85U\x01", order, b"tR"].concat();
    let known = b"cnumpy\ndtype\nU\x02f2\x85R";
    for (array, class) in [
        ([&made[..], &state].concat(), "numpy.core.multiarray._reconstruct"),
        (scalar, "numpy.core.multiarray.scalar"),
        (of_order(dtype, b"C"), "numpy.core.numeric._frombuffer"),
        (of_order(known, b"K"), "numpy.core.numeric._frombuffer"),
    ] {
        let file = legacy(&[b"}U\x01w", &array[..], b"s."].concat(), b"\x80\x02].", b"");
        let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
        let stored = file.stored("w").unwrap();
        assert_eq!((stored.type_name.as_str(), stored.is_readable), (class, false));
        let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
        let error = checkpoint.tensor("w").unwrap().read().unwrap_err().to_string();
        assert!(error.contains("\"w\"") && error.contains(class), "{error}");
    }
}

#[test]
fn an_object_that_is_all_there_is_is_an_error() {
    let pickle = b"c__main__\nHolder\ncarray\narray\n\x85R.";
    let file = legacy(pickle, b"\x80\x02].", b"");
    assert!(TensorFile::from_source(file, "a file", &Options::new()).is_ok());
    let pickle = b"c__main__\nHolder\ncarray\narray\nU\x01f]\x86R\x85R.";
    let file = legacy(pickle, b"\x80\x02].", b"");
    let error = TensorFile::from_source(file, "a file", &Options::new()).unwrap_err();
    assert!(matches!(
        error.other(), Some(ErrorKind::UnknownObject { class }) if class == "__main__.Holder"
    ));
}

#[test]
fn a_tensor_of_a_device_that_is_saved_as_an_array_is_read() {
    let array = array(b"K\x02\x85", "f4", "<", &[1.0_f32, 2.0].map(f32::to_le_bytes).concat());
    // Without the dictionary around it: the opcodes from its key on, up to the last.
    let array = &array[4..array.len() - 2];
    let file = |kind: &str| {
        let function = b"ctorch._utils\n_rebuild_device_tensor_from_numpy\n(";
        let kind = format!("ctorch\n{kind}\nU\x05xla:0");
        [b"}U\x01w", &function[..], array, kind.as_bytes(), b"\x89tRs."].concat()
    };
    assert_eq!(numbers(&file("float32")), [1.0, 2.0]);
    let other = legacy(&file("bfloat16"), b"\x80\x02].", b"");
    let other = TensorFile::from_source(other, "a file", &Options::new()).unwrap();
    assert!(other.stored("w").unwrap().type_name.ends_with("_rebuild_device_tensor_from_numpy"));
}

#[test]
fn bytes_that_are_all_there_is_have_the_name_of_the_file() {
    let file = legacy(b"C\x03abc.", b"\x80\x02].", b"");
    let file = TensorFile::from_source(file, "dir/some.pt", &Options::new()).unwrap();
    let checkpoint = Checkpoint::from_source(file, "some.pt").unwrap();
    assert_eq!(checkpoint.tensor("some").unwrap().read().unwrap().bytes(), b"abc");
}
