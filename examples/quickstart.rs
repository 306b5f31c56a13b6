//! Loads one checkpoint of two files into ndarray, candle and burn, computes with it, saves it from
//! each and reads it back.
//!
//! `cargo run --release --features full --example quickstart`
//!
//! Prints the form of each tensor in each framework. Ends with an error if anything differs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{DType as BurnDType, Tensor as BurnTensor, TensorData};
use candle_core::{DType, Device, Tensor};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use float8::F8E4M3;
use half::{bf16, f16};
use ndarray::{Array2, Ix2};
use safetensors_bridge::burn::{self as bridge_burn, Burn};
use safetensors_bridge::candle::{self as bridge_candle, Candle};
use safetensors_bridge::framework::{Framework, Support, load, save};
use safetensors_bridge::io::FileSource;
use safetensors_bridge::ndarray::{ArrayElement, Ndarray, ViewArrayExt};
use safetensors_bridge::{
    Checkpoint, Dtype, LazyTensor, Limits, LoadOptions, SaveOptions, ShardOptions, TensorBuf,
    TensorView, Widening, save_sharded,
};

/// A checkpoint with files in memory, so that tensors can be borrowed without a copy.
type InMemory = Checkpoint<Vec<u8>>;

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    write_checkpoint(dir.path()).context("writing the checkpoint")?;

    let started = Instant::now();
    let open = |path: &Path| FileSource::open(path)?.read_to_vec();
    let checkpoint = Arc::new(Checkpoint::open_by(dir.path(), &Limits::default(), open)?);
    println!(
        "opened {} tensors in {} files in {:.2?}\n",
        checkpoint.len(),
        checkpoint.files().len(),
        started.elapsed()
    );

    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─')));
    table.set_header([
        "tensor",
        "in the file",
        "shape",
        "bytes",
        "ndarray",
        "candle",
        "burn",
        "time",
    ]);
    for column in [3, 7] {
        table.column_mut(column).context("a column")?.set_cell_alignment(CellAlignment::Right);
    }
    for tensor in checkpoint.tensors() {
        let (cells, time) = load_one(&checkpoint, tensor)?;
        let [ndarray, candle, burn] = cells;
        table.add_row([
            tensor.name().to_owned(),
            tensor.dtype().to_string(),
            format!("{:?}", tensor.shape()),
            tensor.byte_len().to_string(),
            ndarray,
            candle,
            burn,
            format!("{time:.1?}"),
        ]);
    }
    println!("{table}");
    println!(
        "borrowed: the elements are the file's bytes. copied: the framework owns the memory. \
         time: all three together.\n"
    );

    let product = compare_products(&checkpoint)?;
    println!("inputs x weights is the same in all three: {product:?}");
    round_trip::<Ndarray>(&checkpoint, &(), dir.path())?;
    round_trip::<Candle>(&checkpoint, &Device::Cpu, dir.path())?;
    round_trip::<Burn>(&checkpoint, &(), dir.path())?;
    Ok(())
}

/// Writes two files, and the index that maps each tensor to its file, as on the Hub.
fn write_checkpoint(dir: &Path) -> Result<()> {
    // Every dtype here holds small whole numbers exactly, so that results can be compared exactly.
    let number = |i: usize| (i * 7 % 13) as f32 - 6.0;
    let (rows, inner, columns) = (64, 128, 32);
    let codes = (0..inner).map(|i| F8E4M3::from_f32(number(i))).collect();
    let tensors = [
        (
            "inputs",
            TensorBuf::from_vec(vec![rows, inner], (0..rows * inner).map(number).collect())?,
        ),
        (
            "weights",
            TensorBuf::from_vec(
                vec![inner, columns],
                (0..inner * columns).map(|i| bf16::from_f32(number(i))).collect(),
            )?,
        ),
        (
            "norm.scale",
            TensorBuf::from_vec(
                vec![columns],
                (0..columns).map(|i| f16::from_f32(number(i))).collect(),
            )?,
        ),
        ("quantized", TensorBuf::from_vec(vec![inner], codes)?),
        ("position_ids", TensorBuf::from_vec(vec![1, inner], (0..inner as i64).collect())?),
        ("mask", TensorBuf::from_vec(vec![2, 2], vec![true, false, true, true])?),
    ];
    // The inputs alone nearly fill the first file.
    let saved = save_sharded(dir, tensors, &ShardOptions::new().max_shard_size("35KB".parse()?))?;
    ensure!(saved.files.len() == 2, "expected two files, found {:?}", saved.files);
    Ok(())
}

/// Loads one tensor into each framework. Returns its form there, and whether its elements still are
/// the file's bytes.
fn load_one(
    checkpoint: &Arc<InMemory>,
    tensor: LazyTensor<'_, Vec<u8>>,
) -> Result<([String; 3], Duration)> {
    let started = Instant::now();
    let view = tensor.view()?;
    let lent = lend_to_ndarray(&view)?;
    Candle::from_view(&view, &Device::Cpu, Widening::Lossless)?;
    let shared = bridge_burn::share_tensor(checkpoint, tensor.name(), Widening::Lossless)?;
    let time = started.elapsed();
    let in_file = |address: *const u8| view.data().as_ptr_range().contains(&address);
    let cells = [
        became::<Ndarray>(tensor, in_file(lent)),
        became::<Candle>(tensor, false),
        became::<Burn>(tensor, in_file(shared.as_bytes().as_ptr())),
    ];
    Ok((cells, time))
}

/// Returns the address of the first element of ndarray's view.
fn lend_to_ndarray(view: &TensorView<'_>) -> Result<*const u8> {
    fn first<T: ArrayElement>(view: &TensorView<'_>) -> Result<*const u8> {
        Ok(view.as_array::<T, ndarray::IxDyn>()?.as_ptr().cast())
    }
    match view.dtype() {
        Dtype::BOOL => first::<bool>(view),
        Dtype::I64 => first::<i64>(view),
        Dtype::F8_E4M3 => first::<F8E4M3>(view),
        Dtype::F16 => first::<f16>(view),
        Dtype::BF16 => first::<bf16>(view),
        Dtype::F32 => first::<f32>(view),
        other => bail!("the checkpoint has no {other}"),
    }
}

fn became<F: Framework>(tensor: LazyTensor<'_, Vec<u8>>, borrowed: bool) -> String {
    let how = if borrowed { "borrowed" } else { "copied" };
    match F::support(tensor.dtype()) {
        Support::Exact => format!("{}, {how}", tensor.dtype()),
        Support::Widened(to) => format!("{to}, copied (widened)"),
        Support::Unsupported => "not supported".into(),
    }
}

/// Multiplies the same two matrices in each framework, and compares every number.
fn compare_products(checkpoint: &Arc<InMemory>) -> Result<[usize; 2]> {
    let (inputs, weights) = (checkpoint.tensor("inputs")?, checkpoint.tensor("weights")?);

    // ndarray computes on the file's bytes. It has no arithmetic for BF16, so the weights become
    // F32 first.
    let (inputs, weights) = (inputs.view()?, weights.view()?);
    let of_ndarray: Array2<f32> =
        inputs.as_array::<f32, Ix2>()?.dot(&weights.as_array::<bf16, Ix2>()?.mapv(f32::from));

    let tensors = bridge_candle::load(path_of(checkpoint)?, &Device::Cpu)?;
    let of_candle = tensors["inputs"].matmul(&tensors["weights"].to_dtype(DType::F32)?)?;
    let of_candle: Vec<f32> = Tensor::flatten_all(&of_candle)?.to_vec1()?;

    let data = |name| bridge_burn::share_tensor(checkpoint, name, Widening::Lossless);
    let device = burn::tensor::Device::default();
    let of_burn = BurnTensor::<2>::from_data(data("inputs")?, (&device, BurnDType::F32)).matmul(
        BurnTensor::<2>::from_data(data("weights")?.convert::<f32>(), (&device, BurnDType::F32)),
    );
    let of_burn: TensorData = of_burn.into_data();

    let expected: Vec<f32> = of_ndarray.iter().copied().collect();
    ensure!(of_candle == expected, "the product of candle differs from that of ndarray");
    ensure!(
        of_burn.as_slice::<f32>().is_ok_and(|of_burn| of_burn == expected),
        "the product of burn differs"
    );
    Ok([of_ndarray.nrows(), of_ndarray.ncols()])
}

/// Saves all tensors from a framework to one file, and compares the file with the checkpoint.
fn round_trip<F: Framework>(checkpoint: &InMemory, device: &F::Device, dir: &Path) -> Result<()> {
    let tensors = load::<F>(checkpoint, device, &LoadOptions::new())?;
    let path = dir.join(format!("{}.safetensors", F::NAME));
    save::<F>(&path, &tensors, &SaveOptions::new())?;

    let saved = Checkpoint::open(&path)?;
    ensure!(saved.len() == checkpoint.len(), "{}: {} tensors were saved", F::NAME, saved.len());
    let mut widened = 0;
    for tensor in checkpoint.tensors() {
        let original = TensorBuf::from_view(&tensor.view()?)?;
        let expected = match F::support(tensor.dtype()) {
            Support::Widened(to) => {
                widened += 1;
                safetensors_bridge::convert::widen(original, to)?
            }
            _ => original,
        };
        let found = saved.tensor(tensor.name())?.read()?;
        ensure!(
            (found.dtype(), found.shape(), found.bytes())
                == (expected.dtype(), expected.shape(), expected.bytes()),
            "{}: {} differs after saving",
            F::NAME,
            tensor.name()
        );
    }
    println!(
        "saved from {} and read back: {} tensors, bit for bit, {widened} of them widened",
        F::NAME,
        saved.len()
    );
    Ok(())
}

/// Returns the directory that the checkpoint was opened from.
fn path_of(checkpoint: &InMemory) -> Result<&Path> {
    checkpoint.index_path().and_then(Path::parent).context("the checkpoint has an index")
}
