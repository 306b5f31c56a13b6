//! Prints each tensor of a safetensors file with the sum of its elements, computed over ndarray
//! views of the file's bytes.
//!
//! ```text
//! cargo run --features ndarray --example ndarray_inspect -- [FILE]
//! ```
//!
//! Without a file, the example first writes a small one to a temporary directory. The file is read
//! into memory once, and the views borrow from there. A misaligned tensor cannot be borrowed, so it
//! is copied instead. Floats of 8 bits and less, for which Rust has no numbers, are converted.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use half::{bf16, f16};
use ndarray::{ArrayViewD, array};
use num_complex::Complex;
use safetensors_bridge::element::F4Packed;
use safetensors_bridge::ndarray::{
    ArrayElement, DynArray, ReadArrayExt, ViewArrayExt, array_source,
};
use safetensors_bridge::save::Order;
use safetensors_bridge::{
    ConvertOptions, Dtype, ErrorKind, LazyTensor, SafeTensors, SaveOptions, TensorBuf,
    TensorSource, save,
};

fn main() -> Result<()> {
    match std::env::args_os().nth(1) {
        Some(file) => inspect(Path::new(&file)),
        None => {
            let directory = tempfile::tempdir()?;
            let file = directory.path().join("sample.safetensors");
            write_sample(&file)?;
            inspect(&file)
        }
    }
}

fn inspect(file: &Path) -> Result<()> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let archive = SafeTensors::parse(bytes).with_context(|| file.display().to_string())?;
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["tensor", "dtype", "shape", "sum", "data"]);
    for tensor in archive.tensors() {
        let (sum, data) = summary(&tensor).with_context(|| file.display().to_string())?;
        // Names come from the file: quoted, nothing in them can control the terminal.
        let name = format!("{:?}", tensor.name());
        table.add_row([
            name,
            tensor.dtype().to_string(),
            format!("{:?}", tensor.shape()),
            sum,
            data,
        ]);
    }
    println!("{table}");
    Ok(())
}

/// A tensor of a file that is in memory.
type Tensor<'a> = LazyTensor<'a, Vec<u8>>;

/// Returns the sum of a tensor's elements as text, and how the elements were accessed.
fn summary(tensor: &Tensor<'_>) -> Result<(String, String)> {
    let (sum, data) = match tensor.dtype() {
        Dtype::BOOL => sum(tensor, |value: bool| u8::from(value).into())?,
        Dtype::U8 => sum(tensor, |value: u8| value.into())?,
        Dtype::I8 => sum(tensor, |value: i8| value.into())?,
        Dtype::U16 => sum(tensor, |value: u16| value.into())?,
        Dtype::I16 => sum(tensor, |value: i16| value.into())?,
        Dtype::U32 => sum(tensor, |value: u32| value.into())?,
        Dtype::I32 => sum(tensor, |value: i32| value.into())?,
        Dtype::U64 => sum(tensor, |value: u64| value as f64)?,
        Dtype::I64 => sum(tensor, |value: i64| value as f64)?,
        Dtype::F16 => sum(tensor, |value: f16| value.into())?,
        Dtype::BF16 => sum(tensor, |value: bf16| value.into())?,
        Dtype::F32 => sum(tensor, |value: f32| value.into())?,
        Dtype::F64 => sum(tensor, |value: f64| value)?,
        Dtype::C64 => {
            let (re, data) = sum(tensor, |value: Complex<f32>| value.re.into())?;
            let (im, _) = sum(tensor, |value: Complex<f32>| value.im.into())?;
            return Ok((Complex::new(re, im).to_string(), data.into()));
        }
        _ => {
            let converted = tensor.view()?.convert(Dtype::F64, &ConvertOptions::new())?;
            (
                DynArray::from_buf(converted)?.as_array::<f64, ndarray::IxDyn>()?.sum(),
                "converted to F64",
            )
        }
    };
    Ok((sum.to_string(), data.into()))
}

/// Returns the sum over a borrowed view or, where the data is misaligned, over a copy.
fn sum<T: ArrayElement>(
    tensor: &Tensor<'_>,
    to_f64: impl Fn(T) -> f64,
) -> Result<(f64, &'static str)> {
    let sum = |array: ArrayViewD<'_, T>| array.iter().map(|&value| to_f64(value)).sum();
    match tensor.as_array::<T, ndarray::IxDyn>() {
        Ok(array) => Ok((sum(array), "borrowed, no copy")),
        Err(error) if matches!(error.kind(), ErrorKind::Misaligned { .. }) => {
            Ok((sum(tensor.read_array::<T, ndarray::IxDyn>()?.view()), "misaligned, read by copy"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes a file of several dtypes, one of its tensors misaligned.
fn write_sample(file: &Path) -> Result<()> {
    let weight = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let halves = array![0.5_f64, 1.5, -3.0].mapv(f16::from_f64);
    let mask = array![true, false, true];
    let bias = array![0.25_f32, 0.5];
    let packed = TensorBuf::from_vec(vec![2, 2], vec![F4Packed(0x21), F4Packed(0x43)])?;
    let transposed = weight.t();
    let tensors: [(&str, Box<dyn TensorSource + '_>); 6] = [
        ("weight", Box::new(array_source(&weight))),
        ("weight, transposed", Box::new(array_source(&transposed))),
        ("halves", Box::new(array_source(&halves))),
        ("mask", Box::new(array_source(&mask))),
        // The order of this list is kept, so three booleans and three halves come before these
        // numbers of four bytes.
        ("bias", Box::new(array_source(&bias))),
        ("packed", Box::new(packed)),
    ];
    Ok(save(file, tensors, &SaveOptions::new().order(Order::Given))?)
}
