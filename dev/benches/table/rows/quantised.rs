//! Quantised weights, read as numbers, compared with anamnesis, and with a file of plain numbers.

use std::fs::{self, File};
use std::path::Path;

use anamnesis::TargetDtype;
use anyhow::{Context, Result, ensure};
use half::f16;
use safetensors_bridge::{
    Checkpoint, Dtype, LoadOptions, SafeTensors, SaveOptions, TensorBuf, TensorView, serialize,
};

use super::Spec;
use super::load::ALLOWANCE;
use harness::data::{Data, TestFile};
use harness::files::{Pattern, Sums, Tensor, checksum};
use harness::sample::{Contender, Goal, Row};

const OURS: &str = "Checkpoint::dequantized, read_all";
const ANAMNESIS: &str = "anamnesis remember_to_bytes";
const PLAIN: &str = "plain numbers by Checkpoint::read_all";

/// The rows and the columns of a weight.
const SIDE: usize = 4096;

/// The number of weights in a file.
const COUNT: usize = 4;

/// The bytes of all numbers, as BF16.
const BYTES: u64 = (COUNT * SIDE * SIDE * 2) as u64;

/// A way to store weights.
struct Scheme {
    name: &'static str,
    /// The settings in the model's `config.json`.
    config: &'static str,
    /// The tensors that store one weight, with random codes and scales.
    tensors: fn(&mut Pattern) -> Vec<Stored>,
}

/// A tensor: the end of its name, and its content.
struct Stored {
    end: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "FP8 by blocks",
        config: r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#,
        tensors: |pattern| {
            let blocks = [SIDE / 128; 2];
            vec![floats(pattern), scales(".weight_scale_inv", &blocks, Dtype::F32, pattern)]
        },
    },
    Scheme {
        name: "GPTQ of 4 bits",
        config: r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq"}"#,
        tensors: |pattern| {
            let groups = (0..SIDE as i32).flat_map(|i| (i / 128).to_le_bytes()).collect();
            let mut zeros = codes(".qzeros", Dtype::I32, &[SIDE / 128, SIDE / 8], pattern);
            // Libraries differ in the result of 15 + 1.
            zeros.bytes.iter_mut().for_each(|byte| *byte &= 0x77);
            vec![
                codes(".qweight", Dtype::I32, &[SIDE / 8, SIDE], pattern),
                zeros,
                scales(".scales", &[SIDE / 128, SIDE], Dtype::F16, pattern),
                Stored { end: ".g_idx", dtype: Dtype::I32, shape: vec![SIDE], bytes: groups },
            ]
        },
    },
];

pub(super) fn rows() -> Vec<Spec> {
    let name = |scheme: &Scheme| format!("dequantise {} to BF16", scheme.name);
    SCHEMES.iter().map(|scheme| Spec::new(name(scheme), |data| row(scheme, data))).collect()
}

/// The weights of a file become numbers in memory.
fn row(scheme: &'static Scheme, data: &Data) -> Result<Row> {
    let plain: Vec<_> = (0..COUNT)
        .map(|i| Tensor::bf16(format!("model.layers.{i}.weight"), &[SIDE, SIDE]))
        .collect();
    let plain = data.file("numbers.safetensors", &plain)?.path;
    let TestFile { path: model, sums } = scheme.file(data)?;
    let (for_ours, for_peer, for_limit) = (model.clone(), model.clone(), plain.clone());
    let contenders = vec![
        Contender::ours(OURS, move |watch| {
            let read = watch.time(|| ours(&for_ours))?;
            ensure!(sum_of(&read) == sums.plain, "other numbers than before");
            Ok(())
        }),
        Contender::peer(ANAMNESIS, move |watch| {
            let read = watch.time(|| anamnesis(&for_peer))?;
            ensure!(read.len() as u64 > BYTES, "fewer numbers");
            Ok(())
        }),
        Contender::limit(PLAIN, move |watch| {
            let read =
                watch.time(|| Checkpoint::open(&for_limit)?.read_all(&LoadOptions::new()))?;
            ensure!(read.len() == COUNT, "{} tensors", read.len());
            Ok(())
        }),
    ];
    let goals =
        vec![Goal::AtLeast(PLAIN, 0.5), Goal::EachTime(1.5, 1.2), Goal::Memory(BYTES + ALLOWANCE)];
    Ok(Row { goals, bytes: Some(BYTES), files: vec![model, plain], ..Row::loads(contenders) })
}

fn ours(path: &Path) -> safetensors_bridge::Result<Vec<TensorBuf>> {
    Checkpoint::open(path)?.dequantized()?.read_all(&LoadOptions::new().floats_as(Dtype::BF16))
}

fn anamnesis(path: &Path) -> Result<Vec<u8>> {
    Ok(anamnesis::parse(path)?.remember_to_bytes(TargetDtype::BF16)?)
}

/// A checksum of numbers in the order of their tensors.
fn sum_of(read: &[TensorBuf]) -> u64 {
    checksum(read.iter().enumerate().map(|(at, buf)| (at.to_string(), buf.bytes())))
}

/// Returns `true` if numbers of BF16 are equal. Both zeros are equal, because libraries differ in
/// them.
fn are_equal(theirs: &[u8], ours: &[u8]) -> bool {
    let is_zero = |number: &[u8; 2]| u16::from_le_bytes(*number) & 0x7fff == 0;
    let mut pairs = theirs.as_chunks::<2>().0.iter().zip(ours.as_chunks::<2>().0);
    theirs.len() == ours.len() && pairs.all(|(a, b)| a == b || is_zero(a) && is_zero(b))
}

impl Scheme {
    /// A file of weights in this scheme, with the checksum of the numbers that both read from it.
    fn file(&self, data: &Data) -> Result<TestFile> {
        let name = format!("{}.safetensors", self.name.replace(' ', "-"));
        data.file_by(&format!("{}/{name}", self.name), |path| {
            let directory = path.parent().context("a directory")?;
            fs::create_dir_all(directory)?;
            let config = format!(r#"{{"quantization_config": {}}}"#, self.config);
            fs::write(directory.join("config.json"), config)?;
            let mut pattern = Pattern(7);
            let layers: Vec<_> = (0..COUNT).map(|_| (self.tensors)(&mut pattern)).collect();
            let mut views = Vec::new();
            for (layer, tensors) in layers.iter().enumerate() {
                for Stored { end, dtype, shape, bytes } in tensors {
                    let name = format!("model.layers.{layer}.mlp.experts.down_proj{end}");
                    views.push((name, TensorView::new(*dtype, shape, bytes)?));
                }
            }
            fs::write(path, serialize(views, &SaveOptions::new())?)?;
            // Synced now, so that the disk is not busy with it during a measurement.
            File::open(path)?.sync_all()?;
            let read = ours(path)?;
            let theirs = anamnesis(path)?;
            let theirs = SafeTensors::parse(&theirs)?;
            for (tensor, buf) in Checkpoint::open(path)?.dequantized()?.tensors().zip(&read) {
                let same = are_equal(theirs.view(tensor.name())?.data(), buf.bytes());
                ensure!(same, "{} has other numbers by anamnesis", tensor.name());
            }
            Ok(Sums { plain: sum_of(&read), widened: 0 })
        })
    }
}

/// Random codes.
fn codes(end: &'static str, dtype: Dtype, shape: &[usize], pattern: &mut Pattern) -> Stored {
    let bytes = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
    // Some bits of a pattern's bytes are always zero.
    let bytes = pattern.take(bytes + 1).windows(2).map(|pair| pair[0] ^ pair[1] << 3).collect();
    Stored { end, dtype, shape: shape.to_vec(), bytes }
}

/// Weights of F8_E4M3 without NaN.
fn floats(pattern: &mut Pattern) -> Stored {
    let mut codes = codes(".weight", Dtype::F8_E4M3, &[SIDE, SIDE], pattern);
    codes.bytes.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
    codes
}

/// Positive numbers of the size of scales.
fn scales(end: &'static str, shape: &[usize], dtype: Dtype, pattern: &mut Pattern) -> Stored {
    let random = pattern.take(2 * shape.iter().product::<usize>());
    let values = random.as_chunks::<2>().0.iter().map(|&bytes| {
        let value = 0.002 + f32::from(u16::from_le_bytes(bytes)) / 65536.0 / 64.0;
        match dtype {
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    });
    Stored { end, dtype, shape: shape.to_vec(), bytes: values.flatten().collect() }
}
