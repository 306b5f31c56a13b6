//! Pickles by hand: the results of functions that rebuild tensors and containers.

use safetensors_core::Checkpoint;
use safetensors_formats::{Options, TensorFile};
use zip::CompressionMethod;

use super::pytorch::{DATA, KEYS, STORAGE, legacy};
use super::refused;
use crate::support::zip;

/// The keys of a file without storages.
const NO_KEYS: &[u8] = b"\x80\x02].";

/// Opens a file with one pickle, which uses the storage `0`.
fn open(pickle: &[u8]) -> safetensors_formats::Result<TensorFile> {
    TensorFile::from_source(legacy(pickle, KEYS, DATA), "a file", &Options::new())
}

/// Returns the numbers of a tensor in a file with one pickle.
#[track_caller]
fn numbers(pickle: &[u8], name: &str) -> Vec<f32> {
    let checkpoint = Checkpoint::from_source(open(pickle).unwrap(), "a file").unwrap();
    checkpoint.tensor(name).unwrap().read().unwrap().into_vec().unwrap()
}

/// Returns the class and the name of the one object in a file that cannot be read.
#[track_caller]
fn unknown(pickle: &[u8]) -> (String, Option<String>) {
    let file = open(pickle).unwrap();
    let (name, stored) = file.all_stored().next().unwrap();
    assert!(!stored.is_readable && file.all_stored().len() == 1);
    let found = (stored.type_name.clone(), Some(name.to_owned()));
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    let error = checkpoint.tensor(found.1.as_ref().unwrap()).unwrap().read().unwrap_err();
    assert!(error.to_string().contains(&found.0), "{error}");
    found
}

/// A text, as an opcode.
pub(super) fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A tensor that `function` rebuilds, with `last` behind the arguments of every tensor.
pub(super) fn tensor(function: &str, last: &[u8]) -> Vec<u8> {
    let function = format!("ctorch._utils\n{function}\n(");
    let fields = b"K\0K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)R";
    [function.as_bytes(), STORAGE, fields, last, b"tR"].concat()
}

/// A dictionary, without the opcode that ends a pickle.
pub(super) fn dictionary(items: &[(&str, &[u8])]) -> Vec<u8> {
    let items: Vec<u8> =
        items.iter().flat_map(|(key, value)| [&text(key)[..], value].concat()).collect();
    [b"}(", &items[..], b"u"].concat()
}

/// An archive with this value, which uses the storage `0`.
pub(super) fn archive(value: &[u8]) -> Vec<u8> {
    let pickle = [value, b"."].concat();
    zip(CompressionMethod::Stored, &[("a/data.pkl", &pickle), ("a/data/0", &DATA[8..])])
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

#[test]
fn a_container_keeps_the_tensors_that_it_is_made_of() {
    let w = tensor("_rebuild_tensor_v2", b"");
    let dict = under_w(&w);
    // The results of a class's `__reduce__` for `dict(dict(self))`, and the like.
    for (class, arguments) in [
        ("cbuiltins\ndict\n", [&dict[..], b"\x85"].concat()),
        ("c__builtin__\ndict\n", [&b"]"[..], &text("w"), &w, b"\x86a\x85"].concat()),
        ("ccollections\nOrderedDict\n", [&dict[..], b"\x85"].concat()),
        ("ccollections\ndefaultdict\n", [&b"cbuiltins\nlist\n"[..], &dict, b"\x86"].concat()),
        ("ccollections\ndefaultdict\n", [&b"N"[..], &dict, b"\x86"].concat()),
    ] {
        let pickle = [class.as_bytes(), &arguments, b"R."].concat();
        assert_eq!(numbers(&pickle, "w"), [1.0, 2.0], "{class}");
    }
    // A factory that is no class does not hide state that is set on the dictionary.
    let factory = b"cfunctools\npartial\ncbuiltins\nlist\n\x85R\x85R";
    let items = [&text("w")[..], &w, b"s."].concat();
    let pickle = [&b"ccollections\ndefaultdict\n"[..], factory, &items].concat();
    assert_eq!(numbers(&pickle, "w"), [1.0, 2.0]);
}

#[test]
fn a_container_of_something_else_is_named_if_a_tensor_is_in_it() {
    let w = tensor("_rebuild_tensor_v2", b"");
    let object = [&b"c__main__\nHolder\n"[..], &w, b"\x85R"].concat();
    let dict = under_w(&w);
    for (class, name, argument) in [
        ("cbuiltins\ndict\n", "builtins.dict", &object),
        ("ccollections\nOrderedDict\n", "collections.OrderedDict", &object),
        ("cbuiltins\nlist\n", "builtins.list", &dict),
        ("cbuiltins\nset\n", "builtins.set", &w),
    ] {
        let made = [class.as_bytes(), argument, b"\x85R"].concat();
        let pickle = [under_w(&made), b".".to_vec()].concat();
        assert_eq!(unknown(&pickle), (name.to_owned(), Some("w".into())));
    }
    // Without a tensor it is skipped, as every other value is.
    let made = b"cbuiltins\nlist\nX\x02\0\0\0ab\x85R";
    let pickle = [&under_w(&w)[..], &text("other"), made, b"s."].concat();
    assert_eq!(numbers(&pickle, "w"), [1.0, 2.0]);
}

#[test]
fn a_long_list_that_many_calls_use_is_counted_in_each() {
    let options = Options::new();
    let list = [&b"("[..], &b"K\x01".repeat(1000), b"lq\0"].concat();
    let pairs = [&b"(NN\x86q\x01"[..], &b"h\x01".repeat(1000), b"lq\0"].concat();
    let dict = [&b"("[..], &b"NN".repeat(1000), b"dq\0"].concat();
    for (list, call) in [
        (&list, &b"cbuiltins\nlist\nh\0\x85R0"[..]),
        (&list, b"ctorch\nSize\nh\0\x85R0"),
        (&pairs, b"ccollections\nOrderedDict\nh\0\x85R0"),
        (&dict, b"ccollections\nOrderedDict\nh\0\x85R0"),
        (&list, b"ctorch._utils\n_rebuild_parameter\nh\0R0"),
    ] {
        let pickle =
            |times| legacy(&[&list[..], &call.repeat(times), b"N."].concat(), NO_KEYS, b"");
        TensorFile::from_source(pickle(10), "a file", &options).unwrap();
        let error = refused(&pickle(3000), &options);
        assert!(error.contains(" steps") || error.contains("bytes of memory"), "{error}");
    }
}

#[test]
fn a_tensor_of_more_dimensions_than_pytorch_has_is_refused() {
    let file = |dimensions: usize| {
        let sizes = [&b"("[..], &b"K\x01".repeat(dimensions), b"t"].concat();
        let function = b"ctorch._utils\n_rebuild_tensor\n(";
        let made = [function, STORAGE, b"K\0", &sizes, &sizes, b"tR"].concat();
        [under_w(&made), b".".to_vec()].concat()
    };
    assert_eq!(numbers(&file(64), "w"), [1.0]);
    let error = open(&file(65)).unwrap_err().to_string();
    assert!(error.contains("has 65 dimensions, but PyTorch has at most 64"), "{error}");
}

#[test]
fn a_long_list_that_is_used_often_is_counted_wherever_it_is_searched() {
    let long = b"K\x01".repeat(1000);
    let list = [&b"("[..], &long, b"lq\0"].concat();
    let dict = [&b"("[..], &b"NN".repeat(1000), b"dq\0"].concat();
    let object = [&b"cos\nsystem\n("[..], &long, b"tRq\0"].concat();
    // The tables of a module, and its hidden values: the set is the long one.
    let table = |name: &str| [&text(name)[..], b"}s"].concat();
    let names = ["_parameters", "_buffers", "_modules"].map(table).concat();
    let hidden = [&text("_non_persistent_buffers_set")[..], &list, b"s"].concat();
    let module = [&b"c__main__\nM\n)\x81}"[..], &names, &hidden, b"bq\0"].concat();
    for first in [list, dict, object, module] {
        let pickle = |times| {
            let uses = b"h\0".repeat(times);
            legacy(&[&b"("[..], &first, &uses, b"l."].concat(), NO_KEYS, b"")
        };
        assert!(TensorFile::from_source(pickle(10), "a file", &Options::new()).is_ok());
        let error = refused(&pickle(3000), &Options::new());
        assert!(error.contains(" steps"), "{error}");
    }
}

#[test]
fn a_long_key_at_every_depth_is_bounded() {
    let pickle = |depth: usize| {
        let key = [&text(&"k".repeat(10_000))[..], b"q\x000"].concat();
        let first = [tensor("_rebuild_tensor_v2", b""), b"q\x010".to_vec()].concat();
        // Each level has the tensor, and the next level under the long key.
        let level = [b"}", &text("w")[..], b"h\x01sh\0"].concat();
        let dicts = [level.repeat(depth), b"}".to_vec(), b"s".repeat(depth)].concat();
        legacy(&[&key[..], &first, &dicts, b"."].concat(), KEYS, DATA)
    };
    let options = Options::new();
    TensorFile::from_source(pickle(4), "a file", &options).unwrap();
    let error = refused(&pickle(90), &options);
    assert!(error.contains("bytes of memory"), "{error}");
}

#[test]
fn the_class_of_a_module_is_named_by_an_identifier() {
    let text_of = |name: &str| [&[b'U', name.len() as u8][..], name.as_bytes()].concat();
    let module = |class: &[u8]| {
        let id = [b"(", &text_of("module")[..], class, &text_of("net.py"), &text_of("..."), b"tQ"];
        let tables = ["_parameters", "_buffers", "_modules"].map(|name| {
            let table = if name == "_parameters" {
                under_w(&tensor("_rebuild_tensor_v2", b""))
            } else {
                b"}".to_vec()
            };
            [text(name), table, b"s".to_vec()].concat()
        });
        [&id.concat()[..], b")\x81}", &tables.concat(), b"b."].concat()
    };
    assert_eq!(numbers(&module(b"c__main__\nNet\n"), "w"), [1.0, 2.0]);
    let error = open(&module(b"K\x01")).unwrap_err().to_string();
    assert!(error.contains("the class of a module is not a class"), "{error}");
}

#[test]
fn a_long_text_that_names_many_classes_is_bounded() {
    let pickle = |times| {
        let start = [&text(&"m".repeat(10_000))[..], b"q\x000("].concat();
        legacy(&[start, b"h\0h\0\x93".repeat(times), b"l.".to_vec()].concat(), NO_KEYS, b"")
    };
    assert!(TensorFile::from_source(pickle(10), "a file", &Options::new()).is_ok());
    let error = refused(&pickle(1000), &Options::new());
    assert!(error.contains("bytes of memory"), "{error}");
}
