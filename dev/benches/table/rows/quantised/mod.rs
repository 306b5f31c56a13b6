//! Quantised weights: read as numbers, and made.

use std::fs;
use std::path::{Path, PathBuf};

use anamnesis::TargetDtype;
use anyhow::{Context, Result, ensure};
use safetensors_bridge::quantized::{LinearLayers, Quantization};
use safetensors_bridge::{
    Checkpoint, Dtype, LoadOptions, Rewrite, SafeTensors, SaveOptions, TensorBuf,
};

use super::{Spec, limits};
use harness::data::Data;
use harness::files::{Tensor, checksum};
use harness::sample::{Contender, Goal, Row};

mod stored;

use stored::{COUNT, SCHEMES, SIDE, Scheme};

const OURS: &str = "Checkpoint::dequantized, read_all";
const ANAMNESIS: &str = "anamnesis remember_to_bytes";
const PLAIN: &str = "plain numbers by Checkpoint::read_all";
const MOVED: &str = "the same bytes read and written";

/// The memory that reading may take beside the tensors, in bytes.
const ALLOWANCE: u64 = 32 << 20;

pub(super) fn rows() -> Vec<Spec> {
    let read = SCHEMES.iter().flat_map(|scheme| {
        [Dtype::BF16, Dtype::F32].map(|dtype| {
            let name = format!("dequantise {} to {dtype}", scheme.name);
            Spec::new(name, move |data| dequantise(scheme, dtype, data))
        })
    });
    let made = Quantization::ALL
        .map(|how| Spec::new(format!("quantise BF16 to {how}"), move |data| quantise(how, data)));
    read.chain(made).collect()
}

/// The weights of a file become numbers in memory.
fn dequantise(scheme: &'static Scheme, dtype: Dtype, data: &Data) -> Result<Row> {
    let plain = data.file(&format!("numbers-{dtype}.safetensors"), &numbers(dtype))?.path;
    let model = scheme.file(data)?;
    let bytes = COUNT as u64 * (SIDE * SIDE) as u64 * u64::from(dtype.bits()) / 8;
    let sum = expected(scheme, dtype, &model)?;
    let (path, file) = (model.clone(), plain.clone());
    let mut contenders = vec![Contender::ours(OURS, move |watch| {
        let read = watch.time(|| ours(&path, dtype))?;
        ensure!(sum_of(&read) == sum, "other numbers than before");
        Ok(())
    })];
    let mut goals = vec![Goal::OfLimit(PLAIN, 0.5), Goal::Memory(bytes + ALLOWANCE)];
    if scheme.has_peer {
        let path = model.clone();
        contenders.push(Contender::peer(ANAMNESIS, move |watch| {
            let read = watch.time(|| anamnesis(&path, dtype))?;
            ensure!(read.len() as u64 > bytes, "fewer numbers");
            Ok(())
        }));
        goals.push(Goal::Faster(ANAMNESIS, 1.0));
    }
    contenders.push(Contender::limit(PLAIN, move |watch| {
        let read = watch.time(|| Checkpoint::open(&file)?.read_all(&LoadOptions::new()))?;
        ensure!(read.len() == COUNT, "{} tensors", read.len());
        Ok(())
    }));
    Ok(Row::new(contenders)
        .goals(goals)
        .isolated()
        .samples(7)
        .bytes(bytes)
        .memory(3 * bytes)
        .reads(model)
        .reads(plain))
}

fn numbers(dtype: Dtype) -> Vec<Tensor> {
    let new = if dtype == Dtype::F32 { Tensor::f32 } else { Tensor::bf16 };
    (0..COUNT).map(|i| new(format!("model.layers.{i}.weight"), &[SIDE, SIDE])).collect()
}

fn ours(path: &Path, dtype: Dtype) -> safetensors_bridge::Result<Vec<TensorBuf>> {
    let options = LoadOptions::new().floats_as(dtype);
    Checkpoint::open(path)?.dequantized()?.read_all(&options)
}

fn anamnesis(path: &Path, dtype: Dtype) -> Result<Vec<u8>> {
    let target = if dtype == Dtype::F32 { TargetDtype::F32 } else { TargetDtype::BF16 };
    Ok(anamnesis::parse(path)?.remember_to_bytes(target)?)
}

/// A checksum of numbers in the order of their tensors.
fn sum_of(read: &[TensorBuf]) -> u64 {
    checksum(read.iter().enumerate().map(|(at, buf)| (at.to_string(), buf.bytes())))
}

/// The checksum of the numbers, which the first process compares with the peer's.
fn expected(scheme: &Scheme, dtype: Dtype, model: &Path) -> Result<u64> {
    let kept = model.with_extension(format!("{dtype}.sum"));
    if let Ok(sum) = fs::read_to_string(&kept) {
        return Ok(sum.parse()?);
    }
    let read = ours(model, dtype)?;
    if scheme.has_peer {
        let theirs = anamnesis(model, dtype)?;
        let theirs = SafeTensors::parse(&theirs)?;
        let names = Checkpoint::open(model)?.dequantized()?;
        for (tensor, buf) in names.tensors().zip(&read) {
            let same = are_equal(theirs.view(tensor.name())?.data(), buf.bytes(), dtype);
            ensure!(same, "{}: {} has other numbers by anamnesis", scheme.name, tensor.name());
        }
    }
    let sum = sum_of(&read);
    fs::write(kept, sum.to_string())?;
    Ok(sum)
}

/// Whether numbers are equal bit by bit. Both zeros are equal, because libraries differ in them.
fn are_equal(theirs: &[u8], ours: &[u8], dtype: Dtype) -> bool {
    let size = dtype.bits() as usize / 8;
    let is_zero = |number: &[u8]| {
        let (last, others) = number.split_last().unwrap_or((&0, &[]));
        last & 0x7f == 0 && others.iter().all(|&byte| byte == 0)
    };
    let mut pairs = theirs.chunks_exact(size).zip(ours.chunks_exact(size));
    theirs.len() == ours.len()
        && pairs.all(|(theirs, ours)| theirs == ours || is_zero(theirs) && is_zero(ours))
}

/// The weights of a file become codes and scales in another file.
fn quantise(how: Quantization, data: &Data) -> Result<Row> {
    let plain = data.file("numbers-BF16.safetensors", &numbers(Dtype::BF16))?.path;
    let path = data.path().join(format!("quantised-{how}.safetensors"));
    let (from, to) = (plain.clone(), path.clone());
    let save = move || -> Result<()> {
        let checkpoint = Checkpoint::open(&from)?;
        let rewrite = Rewrite::of(&checkpoint).quantize(
            how,
            &Default::default(),
            &LinearLayers::new(),
            |_, _| Some(true),
        )?;
        Ok(rewrite.save(&to, &SaveOptions::new().durable(false))?)
    };
    if !path.exists() {
        save()?;
    }
    let written = fs::metadata(&path)?.len();
    let (from, to) = (plain.clone(), path.with_extension("moved"));
    let content = fs::read(&path)?;
    let limit = move || -> Result<()> {
        limits::read_into_reused_buffers(&from)?;
        limits::write_pieces(&to, &[&content])
    };
    let ours = Contender::ours("Rewrite::quantize, save", move |watch| {
        watch.time(&save)?;
        ensure!(fs::metadata(&path)?.len() == written, "another file than before");
        Ok(())
    });
    let limit = Contender::limit(MOVED, move |watch| watch.time(&limit));
    let read = fs::metadata(&plain)?.len();
    Ok(Row::new(vec![ours, limit])
        .goals([Goal::Memory(ALLOWANCE)])
        .samples(5)
        .bytes(read + written)
        .reads(plain))
}

impl Scheme {
    /// A file of weights in this scheme, written if it is not there yet.
    fn file(&self, data: &Data) -> Result<PathBuf> {
        let directory = data.path().join(self.name.replace([' ', ','], "-"));
        let path = directory.join("model.safetensors");
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(&directory)?;
        let config = format!(r#"{{"quantization_config": {}}}"#, self.config);
        fs::write(directory.join("config.json"), config)?;
        self.write(&path).context(self.name)?;
        Ok(path)
    }
}
