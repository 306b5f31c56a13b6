//! Pickles by hand: what the functions that rebuild tensors and containers make of them.

use safetensors_core::Checkpoint;
use safetensors_formats::{ErrorKind, Options, TensorFile};

use super::pytorch::{DATA, KEYS, STORAGE, legacy};

/// Opens a file of one pickle, which uses the storage `0`.
fn open(pickle: &[u8]) -> safetensors_formats::Result<TensorFile<Vec<u8>>> {
    TensorFile::from_source(legacy(pickle, KEYS, DATA), "a file", &Options::new())
}

/// The numbers of a tensor in a file of one pickle.
#[track_caller]
fn numbers(pickle: &[u8], name: &str) -> Vec<f32> {
    let checkpoint = Checkpoint::from_source(open(pickle).unwrap(), "a file").unwrap();
    checkpoint.tensor(name).unwrap().read().unwrap().into_vec().unwrap()
}

/// The class and the member that the error of opening a file names.
#[track_caller]
fn unknown(pickle: &[u8]) -> (String, Option<String>) {
    let error = open(pickle).unwrap_err();
    match error.kind() {
        ErrorKind::UnknownObject { class } => (class.clone(), error.member().map(str::to_owned)),
        _ => panic!("{error}"),
    }
}

/// A text, as an opcode.
fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A tensor that `function` rebuilds, with `last` behind the arguments of every tensor.
fn tensor(function: &str, last: &[u8]) -> Vec<u8> {
    let function = format!("ctorch._utils\n{function}\n(");
    let fields = b"K\0K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)R";
    [function.as_bytes(), STORAGE, fields, last, b"tR"].concat()
}

/// A dictionary with one value under the key `w`.
fn under_w(value: &[u8]) -> Vec<u8> {
    [&b"}"[..], &text("w"), value, b"s"].concat()
}

#[test]
fn a_conjugate_or_negative_tensor_is_named_and_not_read_as_it_is_stored() {
    let marked = |name: &str| [&b"}"[..], &text(name), b"\x88s"].concat();
    for (function, before) in
        [("_rebuild_tensor_v2", &b""[..]), ("_rebuild_tensor_v3", b"ctorch\nfloat32\n")]
    {
        let file = |last: &[u8]| {
            let pickle = under_w(&tensor(function, &[before, last].concat()));
            [&pickle[..], b"."].concat()
        };
        for nothing in [&b""[..], b"N", b"}"] {
            assert_eq!(numbers(&file(nothing), "w"), [1.0, 2.0], "{function}");
        }
        for mark in [marked("conj"), marked("neg"), b"K\x01".to_vec()] {
            let expected = (format!("torch._utils.{function}"), Some("w".into()));
            assert_eq!(unknown(&file(&mark)), expected);
        }
    }
    // Also inside a parameter.
    let inner = tensor("_rebuild_tensor_v2", &marked("neg"));
    let hooks = b"\x89ccollections\nOrderedDict\n)R\x87R";
    let parameter = [&b"ctorch._utils\n_rebuild_parameter\n"[..], &inner, hooks].concat();
    let (class, member) = unknown(&[under_w(&parameter), b".".to_vec()].concat());
    assert_eq!((class.as_str(), member.as_deref()), ("torch._utils._rebuild_tensor_v2", Some("w")));
}
