//! Files that are opened under the names of transformers.

use std::path::Path;

use safetensors_core::{Checkpoint, TensorBuf};
use safetensors_formats::gguf::{Type, Writer};
use safetensors_formats::{ErrorKind, Options, Result, TensorFile};

use super::super::{HEAD, HIDDEN, Tiny, numbers, tensors, write, written};
use super::values;

/// Opens a file under the names that transformers has.
fn open(path: &Path) -> Result<Checkpoint<TensorFile>> {
    let stored = safetensors_formats::open(path, &Options::new())?;
    let options = Options::new().dequantize(true).transformers_names(stored.metadata())?;
    safetensors_formats::open(path, &options)
}

fn names(checkpoint: &Checkpoint<TensorFile>) -> Vec<String> {
    let mut names: Vec<_> = checkpoint.tensors().map(|it| it.name().to_owned()).collect();
    names.sort();
    names
}

/// Asserts that a file has the names of a model again.
pub(super) fn assert_names_again(path: &Path, mut expected: Vec<String>) {
    expected.sort();
    assert_eq!(names(&open(path).unwrap()), expected);
}

/// Asserts that a file of F32 has the names and numbers of a model again.
pub(super) fn assert_same_again(path: &Path, tiny: &Tiny) {
    assert_names_again(path, tiny.tensors.iter().map(|(name, _)| name.clone()).collect());
    let back = open(path).unwrap();
    for (name, tensor) in tensors(&tiny.tensors) {
        let found = back.tensor(&name).unwrap().read().unwrap();
        assert_eq!(found.shape(), tensor.shape(), "{name}");
        let found: Vec<f32> = found.into_vec().unwrap();
        let given: Vec<f32> = tensor.into_vec().unwrap();
        // One was added to some norms, and rounded.
        let is_exact = !name.contains("norm");
        let is_same = |(a, b): (&f32, &f32)| a == b || !is_exact && (a - b).abs() < 1e-6;
        assert!(found.iter().zip(&given).all(is_same), "{name}");
    }
}

#[test]
fn any_part_of_rows_is_put_back_whatever_the_type() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    for kind in [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0] {
        let (writer, _) = Tiny::llama().plan(dir.path(), kind).unwrap();
        let stored = values_as_f32(&written(&writer, &path), "blk.1.attn_k.weight");
        let back = open(&path).unwrap();
        let name = "model.layers.1.self_attn.k_proj.weight";
        let tensor = back.tensor(name).unwrap();
        let expected: Vec<f32> = (0..2 * HEAD)
            .flat_map(|row| {
                let (head, within) = (row / HEAD * HEAD, row % HEAD);
                let from = head + within % (HEAD / 2) * 2 + within / (HEAD / 2);
                stored[from * HIDDEN..][..HIDDEN].to_vec()
            })
            .collect();
        assert!(values_as_f32(&back, name) == expected, "{kind}");
        for (rows, columns) in [(3..4, 0..HIDDEN), (5..30, 7..9), (0..2 * HEAD, 63..HIDDEN)] {
            let part = tensor.slice((rows.clone(), columns.clone())).unwrap().read().unwrap();
            let part: Vec<f32> = part
                .convert(safetensors_core::Dtype::F32, &Default::default())
                .unwrap()
                .into_vec()
                .unwrap();
            let expected: Vec<f32> =
                rows.flat_map(|row| expected[row * HIDDEN..][columns.clone()].to_vec()).collect();
            assert_eq!(part, expected, "{kind}");
        }
    }
    // Codes are read only if they are asked for, under any name.
    let stored = safetensors_formats::open(&path, &Options::new()).unwrap();
    let options = Options::new().transformers_names(stored.metadata()).unwrap();
    let codes = safetensors_formats::open(&path, &options).unwrap();
    let error = codes.tensor("lm_head.weight").unwrap().read().unwrap_err().to_string();
    assert!(error.contains("quantised as Q4_0"), "{error}");
}

fn values_as_f32(checkpoint: &Checkpoint<TensorFile>, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap().read().unwrap();
    tensor.convert(safetensors_core::Dtype::F32, &Default::default()).unwrap().into_vec().unwrap()
}

/// A file with these keys and tensors of F32.
fn file(path: &Path, keys: &[(&'static str, &str)], listed: &[(&str, &[usize])]) {
    let mut writer = Writer::new();
    for (key, value) in keys {
        match value.parse::<u32>() {
            Ok(number) => writer.metadata(*key, number),
            Err(_) => writer.metadata(*key, *value),
        }
    }
    for (name, shape) in listed {
        let values = numbers(name, shape.iter().product());
        let tensor = TensorBuf::from_vec(shape.to_vec(), values).unwrap();
        writer.add(*name, Type::F32, tensor).unwrap();
    }
    write(&writer, path).unwrap();
}

const LLAMA: [(&str, &str); 2] =
    [("general.architecture", "llama"), ("llama.attention.head_count", "2")];

#[test]
fn the_first_part_of_a_split_file_determines_the_names_in_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = |part: u32| dir.path().join(format!("a-0000{part}-of-00002.gguf"));
    let split = |number| [("split.no", number), ("split.count", "2")];
    file(&path(1), &[&LLAMA[..], &split("0")].concat(), &[("output.weight", &[4, 2])]);
    file(&path(2), &split("1"), &[("blk.11.attn_q.bias", &[8])]);
    for part in [1, 2] {
        let back = open(&path(part)).unwrap();
        assert_eq!(names(&back), ["lm_head.weight", "model.layers.11.self_attn.q_proj.bias"]);
        let given = numbers("blk.11.attn_q.bias", 8);
        let expected = [0, 2, 1, 3, 4, 6, 5, 7].map(|i| given[i]);
        assert_eq!(values(&back, "model.layers.11.self_attn.q_proj.bias"), expected);
    }
}

#[test]
fn a_tensor_without_a_name_there_keeps_its_own_and_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let unknown = [
        "blk.0.ffn_gate_exps.weight",
        "blk.01.attn_q.weight",
        "blk.0.attn_norm.bias",
        "output_norm.scale",
        "model.norm.weight",
    ];
    let mut listed: Vec<(&str, &[usize])> = unknown.iter().map(|name| (*name, &[4][..])).collect();
    listed.extend([("rope_freqs.weight", &[4][..]), ("output_norm.weight", &[4])]);
    file(&path, &LLAMA, &listed[..4]);
    let back = open(&path).unwrap();
    assert_eq!(names(&back), {
        let mut expected = unknown[..4].to_vec();
        expected.sort_unstable();
        expected
    });
    for name in &unknown[..4] {
        let error = back.tensor(name).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("no tensor of the architecture llama that is known"));
        let stored = back.files()[0].safetensors().source().stored(name).unwrap();
        assert!(!stored.is_readable && stored.type_name == "F32", "{stored:?}");
    }
    file(&path, &LLAMA, &listed[5..]);
    assert_eq!(names(&open(&path).unwrap()), ["model.norm.weight"]);
    // Two tensors with the same name are refused.
    file(&path, &LLAMA, &listed[4..]);
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("duplicate tensor name"), "{error}");
}

#[test]
fn missing_facts_in_the_file_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let (llama, gemma) = (("general.architecture", "llama"), ("general.architecture", "gemma"));
    let queries: (&str, &[usize]) = ("blk.0.attn_q.weight", &[6, 2]);
    let huge: (&str, &[usize]) = ("blk.0.attn_q.bias", &[10 << 20]);
    let known = "general.architecture should be one of llama, qwen2, qwen3, gemma, gemma2, gemma3, \
                 bert, found";
    let heads = |count: u32| {
        let name = "tensor \"blk.0.attn_q.weight\"";
        format!("{name}: its 6 rows should divide among {count} heads, an even number each")
    };
    for (keys, listed, expected) in [
        (&[][..], &[][..], format!("{known} \"\"")),
        (&[("general.architecture", "phi3")], &[], format!("{known} \"phi3\"")),
        (&[llama], &[queries], heads(0)),
        (&[llama, ("llama.attention.head_count", "x")], &[queries], heads(0)),
        (&[llama, ("llama.attention.head_count", "4")], &[queries], heads(4)),
        (&[llama, ("llama.attention.head_count", "2")], &[queries], heads(2)),
        (
            &[llama, ("llama.attention.head_count", "1")],
            &[huge],
            "tensor \"blk.0.attn_q.bias\": a head has more than 16777216 bytes".into(),
        ),
    ] {
        file(&path, keys, listed);
        let error = open(&path).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadModel { .. })), "{error:?}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let mut writer = Writer::new();
    writer.metadata(gemma.0, gemma.1);
    let norm = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    writer.add("output_norm.weight", Type::F16, norm).unwrap();
    write(&writer, &path).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("it should be F32, found F16"), "{error}");
}
