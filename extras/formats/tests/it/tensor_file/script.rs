//! Archives of TorchScript.

use std::io::Write;

use safetensors_core::{Checkpoint, LoadOptions};
use safetensors_formats::{ErrorKind, Limits, Options, TensorFile};
use zip::write::SimpleFileOptions;

use super::{assert_fixture, fixture, refused};
use crate::support::zip;

#[test]
fn the_state_of_scripted_traced_and_frozen_modules_is_read() {
    for name in ["script.pt", "traced.pt", "frozen.pt"] {
        assert_fixture(&format!("pytorch/{name}"), &Options::new());
    }
}

#[test]
fn tied_parameters_are_aliases() {
    let checkpoint = assert_fixture("pytorch/script.pt", &Options::new());
    let aliases: Vec<_> =
        checkpoint.aliases().map(|(alias, tensor)| (alias, tensor.name())).collect();
    assert!(aliases.contains(&("tied.weight", "list.0.weight")), "{aliases:?}");
    assert!(aliases.contains(&("same.layer.weight", "inner.layer.weight")), "{aliases:?}");
}

#[test]
fn attributes_that_are_no_state_are_counted() {
    let path = fixture("pytorch/script.pt");
    let file = TensorFile::open(&path, &Options::new()).unwrap();
    assert!(!file.has("inner.plain") && file.has("inner.hidden"));
    let [note] = file.notes() else { panic!("{:?}", file.notes()) };
    let says = "skipped: 6 tensors that are no state of their modules, ";
    assert!(note.starts_with(says), "{note}");
    let frozen = TensorFile::open(fixture("pytorch/frozen.pt"), &Options::new()).unwrap();
    let has_lost_names = |note: &String| note.contains("has no names for its weights");
    assert!(frozen.notes().iter().any(has_lost_names), "{:?}", frozen.notes());
}

#[test]
fn packed_weights_are_listed_and_not_read() {
    let path = fixture("pytorch/refused/packed.pt");
    let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
    let file = checkpoint.files()[0].safetensors().source();
    let listed: Vec<_> = file.all_stored().collect();
    assert_eq!(listed.len(), 2);
    for (name, stored) in listed {
        assert!(name.ends_with("._packed_params"), "{name}");
        let class = "__torch__.torch.classes.quantized.LinearPackedParamsBase";
        assert_eq!((stored.type_name.as_str(), stored.is_readable), (class, false));
    }
    let error = checkpoint.read_all(&LoadOptions::new()).unwrap_err().to_string();
    assert!(error.contains("LinearPackedParamsBase"), "{error}");
}

/// Returns the frozen archive, with other code.
fn with_code(code: Option<&str>) -> Vec<u8> {
    let whole = std::fs::read(fixture("pytorch/script.pt")).unwrap();
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(whole)).unwrap();
    let mut written = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).unwrap();
        let name = member.name().unwrap().into_owned();
        if !name.ends_with("code/__torch__.py") {
            written.start_file(name, SimpleFileOptions::default()).unwrap();
            std::io::copy(&mut member, &mut written).unwrap();
        } else if let Some(code) = code {
            written.start_file(name, SimpleFileOptions::default()).unwrap();
            written.write_all(code.as_bytes()).unwrap();
        }
    }
    written.finish().unwrap().into_inner()
}

fn opened(code: Option<&str>) -> safetensors_formats::Result<TensorFile> {
    TensorFile::from_source(with_code(code), "a file", &Options::new())
}

#[test]
fn code_that_is_missing_or_hostile_is_named() {
    let error = opened(None).unwrap_err();
    assert!(
        matches!(error.other(), Some(ErrorKind::NoCode { class }) if class == "__torch__.Outer")
    );
    let class = "class Outer(Module):\n";
    for (list, says) in [
        ("__parameters__ = f()", "__parameters__ = is no list of names"),
        ("__buffers__ = [\"a\" \"b\"]", "__buffers__ = is no list of names"),
        ("__buffers__ = []\n  __buffers__ = []", "a class has __buffers__ = twice"),
        ("a : Tensor\nclass Outer(Module):", "the class Outer is there twice"),
    ] {
        let error = opened(Some(&format!("{class}  {list}\n"))).unwrap_err().to_string();
        assert!(error.starts_with("a file: the code in ") && error.contains(says), "{error}");
    }
    // A class that is none of modules has no state: its tensors are not read.
    let file = opened(Some("class Outer:\n  __parameters__ = []\n"));
    assert!(matches!(file.unwrap_err().other(), Some(ErrorKind::UnknownObject { .. })));
}

#[test]
fn a_class_without_a_list_of_buffers_has_every_tensor() {
    let outer = "class Outer(Module):\n  __parameters__ = []\n";
    let file = opened(Some(&format!("{outer}class Inner(Module):\n  __parameters__ = []\n")));
    let file = file.unwrap();
    assert!(file.has("inner.plain") && file.has("inner.kept"));
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    assert_eq!(checkpoint.tensor("inner.plain").unwrap().shape(), [2]);
}

#[test]
fn the_code_that_is_read_is_bounded() {
    let mut limits = Limits::default();
    limits.directory_bytes = 20_000;
    let options = Options::new().limits(limits);
    let code = format!("class Outer(Module):\n{}", "#".repeat(700_000));
    let error = TensorFile::from_source(with_code(Some(&code)), "a file", &options).unwrap_err();
    assert!(error.to_string().contains("over 640000 bytes of memory"), "{error}");
    assert!(TensorFile::from_source(with_code(None), "a file", &options).is_err());
}

#[test]
fn a_module_that_holds_itself_is_an_error() {
    let text =
        |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let pickle = [b"\x80\x02c__torch__\nNet\n)\x81q\0}", &text("a")[..], b"h\0sb."].concat();
    let code = b"class Net(Module):\n  __parameters__ = []\n  __buffers__ = []\n";
    let members: [(&str, &[u8]); 3] = [
        ("n/data.pkl", &pickle),
        ("n/code/__torch__.py", code),
        ("n/constants.pkl", b"\x80\x02)."),
    ];
    let archive = zip(zip::CompressionMethod::Deflated, &members);
    let error = refused(&archive, &Options::new());
    assert!(error.contains("deeper than the limit of 100"), "{error}");
}
