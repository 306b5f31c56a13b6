//! Quantised weights by names, dtypes and shapes: each is refused, or parts equal the whole.
//!
//! An input begins with a choice of `FORMS`, and may change its settings and every tensor, or it
//! makes up all of them. So each decoder is a byte away.

mod forms;

use safetensors_core::checkpoint::Computed;
use safetensors_core::checkpoint::store::{MemoryFile, MemoryStore};
use safetensors_core::{
    Checkpoint, Dtype, Limits, ReadAt, Result, SaveOptions, TensorBuf, TensorView, serialize,
};

use crate::input::Input;
use forms::FORMS;

/// The ends of the names that schemes know.
const NAMES: &[&str] = &[
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_zero_point",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_g_idx",
    "pre_quant_scale",
    "input_scale",
    "scale",
    "scale_weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "biases",
    "qbiases",
    "weight_scales",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "comfy_quant",
    "_weight_qdata",
    "_weight_scale",
    "weight._data",
    "weight._data._data",
    "weight._scale",
    "weight._shift",
    "bias",
    "embedding_quantized",
    "embedding_scale",
    "W_q",
    "zero",
    "nbits",
    "axis",
    "shape",
    "blocks",
];

const METHODS: &[&str] = &[
    "",
    "fp8",
    "compressed-tensors",
    "modelopt",
    "mxfp4",
    "gptq",
    "auto-round",
    "awq",
    "bitsandbytes",
    "torchao",
    "hqq",
    "quanto",
    "mlx",
    "metal",
    "gemma",
    "quark",
    "mxfp8",
];

/// Dimensions that schemes expect, and others.
const DIMS: &[usize] = &[0, 1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 96, 128, 1 << 40, 1 << 60];

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let Ok(checkpoint) = open(&mut input) else { return };
    for tensor in checkpoint.tensors() {
        if tensor.byte_len() > 1 << 22 {
            continue;
        }
        let source = tensor.source();
        let mut whole = vec![0; tensor.byte_len() as usize];
        let is_read = source.read_exact_at(&mut whole, tensor.file_offset()).is_ok();
        let start = input.u64() % (whole.len() as u64 + 1);
        let len = input.u64() % (whole.len() as u64 - start + 1);
        let mut part = vec![0; len as usize];
        let read = source.read_exact_at(&mut part, tensor.file_offset() + start);
        // A group that does not exist is an error of the parts that have it.
        if is_read {
            read.unwrap();
            assert!(part == whole[start as usize..][..len as usize], "{}", tensor.name());
        }
    }
}

/// Returns the checkpoint that an input describes, with its weights as numbers.
fn open(input: &mut Input<'_>) -> Result<Checkpoint<Computed<MemoryFile<Vec<u8>>>>> {
    let form = input.below(FORMS.len() + 1);
    let (config, tensors) = match form.checked_sub(1) {
        Some(form) => of_form(input, &FORMS[form]),
        None => made_up(input),
    };
    let file = serialize(tensors.iter().map(|(name, buf)| (name, buf)), &SaveOptions::new());
    let mut files = vec![("m/model.safetensors", file.unwrap())];
    if !config.is_empty() {
        let config = format!("{{\"hidden_size\": 64, \"quantization_config\": {config}}}");
        files.push(("m/config.json", config.into_bytes()));
    }
    let store = MemoryStore::from_iter(files);
    Checkpoint::open_in(store, "m", &Limits::default())
        .unwrap()
        .into_stored()
        .unwrap()
        .dequantized()
}

type Tensors = Vec<(String, TensorBuf)>;

/// Settings of any method.
fn settings(input: &mut Input<'_>) -> String {
    let method = input.one_of(METHODS);
    let (bits, group) = (input.below(10), input.one_of(DIMS));
    match method {
        "" => String::new(),
        _ => format!(r#"{{"quant_method": "{method}", "bits": {bits}, "group_size": {group}}}"#),
    }
}

/// Makes a weight of a known scheme with some tensors changed or absent.
fn of_form(input: &mut Input<'_>, form: &forms::Form) -> (String, Tensors) {
    let config = if input.flag() { settings(input) } else { form.config.to_owned() };
    let mut tensors = Vec::new();
    for &(name, mut dtype, shape, content) in form.tensors {
        let mut shape = shape.to_vec();
        let change = input.below(8);
        match (change, shape.len()) {
            (1, _) => continue,
            (2, _) => dtype = input.one_of(Dtype::ALL),
            (3, _) => shape.push(input.one_of(DIMS)),
            (4.., 1..) if change < 6 => {
                let dim = input.below(shape.len());
                shape[dim] = input.one_of(DIMS);
            }
            _ => {}
        }
        // Tensors that describe others stay unchanged, unless this is the change.
        let content = if change == 7 { b"" } else { content };
        tensors.extend(tensor(input, name.to_owned(), dtype, &shape, content));
    }
    (config, tensors)
}

/// Any tensors with names that schemes know.
fn made_up(input: &mut Input<'_>) -> (String, Tensors) {
    let config = settings(input);
    let mut tensors: Tensors = Vec::new();
    for _ in 0..input.below(8) {
        let name = format!("l.{}", input.one_of(NAMES));
        let dtype = input.one_of(Dtype::ALL);
        let shape: Vec<_> = (0..input.below(4)).map(|_| input.one_of(DIMS)).collect();
        if tensors.iter().all(|(other, _)| *other != name) {
            tensors.extend(tensor(input, name, dtype, &shape, b""));
        }
    }
    (config, tensors)
}

/// A tensor with these first bytes, unless it is large.
fn tensor(
    input: &mut Input<'_>,
    name: String,
    dtype: Dtype,
    shape: &[usize],
    first: &[u8],
) -> Option<(String, TensorBuf)> {
    let len = safetensors_core::shape::byte_len(dtype, shape).ok().filter(|len| *len <= 1 << 14)?;
    let mut bytes = match first {
        b"" => input.filled(len as usize),
        _ => vec![b' '; len as usize],
    };
    let of_first = first.len().min(bytes.len());
    bytes[..of_first].copy_from_slice(&first[..of_first]);
    if dtype == Dtype::BOOL {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    let view = TensorView::new(dtype, shape, &bytes).unwrap();
    Some((name, TensorBuf::from_view(&view).unwrap()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use safetensors_core::{Checkpoint, LazyTensor};

    use super::forms::FORMS;
    use super::{Input, open, run};

    /// The seed of a form is its number, so nothing of it is changed.
    #[test]
    fn the_seed_of_each_form_reaches_its_decoder() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds/quantized");
        for (number, form) in FORMS.iter().enumerate() {
            let seed = fs::read(seeds.join(form.name)).unwrap();
            assert_eq!(usize::from(seed[0]), number + 1, "{}", form.name);
            let checkpoint = open(&mut Input::new(&seed)).unwrap_or_else(|error| {
                panic!("{}: {error}", form.name);
            });
            let stored = checkpoint.files()[0].safetensors().source().stored();
            let stored = Checkpoint::from_source(stored, "stored").unwrap();
            let is_number = |tensor: LazyTensor<'_, _>| {
                let stored = stored.get(tensor.name());
                stored.is_none_or(|stored| stored.dtype() != tensor.dtype())
            };
            assert!(checkpoint.tensors().any(is_number), "{}", form.name);
            run(&seed);
        }
    }
}
