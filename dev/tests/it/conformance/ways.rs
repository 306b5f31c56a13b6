//! Every way to read a tensor, with every kind of tensor: all of them take the same decision. The
//! table of the results is in docs/reading.md, and the suite fails if it says anything else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use float8::F8E4M3;
use half::bf16;
use ndarray::s;
use num_complex::Complex;
use safetensors_bridge::burn::{Burn, CheckpointStore, ModuleSnapshot};
use safetensors_bridge::candle::{Candle, CheckpointBackend, IntoCore, TensorParallelBackend};
use safetensors_bridge::checkpoint::store::{AsyncFile, AsyncStore, Fetched};
use safetensors_bridge::checkpoint::{Assembled, Computed};
use safetensors_bridge::convert::Converted;
use safetensors_bridge::framework::{
    Framework, StagedPart, Staging, StagingBuffers, TensorCache, load, prepare, read_staged,
};
use safetensors_bridge::load::{QuantizedWeights, read_slices, read_tensors};
use safetensors_bridge::ndarray::{Ndarray, ReadArrayExt, Reader};
use safetensors_bridge::ranks::RankRules;
use safetensors_bridge::slice::TensorPart;
use safetensors_bridge::{
    Checkpoint, ConvertOptions, Dtype, LazyTensor, Limits, LoadOptions, ReadAt, Result, Rewrite,
    SafeTensors, SaveOptions, ShardOptions, TensorBuf, TensorSource, TensorView, save, serialize,
};

use safetensors_testing::asynchronous::{Opening, RemoteFile, Server, block_on};

use super::sample::written;

/// The shape of `w`, the tensor that is read.
const SHAPE: [usize; 2] = [2, 2];

/// The request: a dtype, or the tensor as it is in the file.
#[derive(Clone, Copy)]
struct Ask {
    to: Option<Dtype>,
    quantized: QuantizedWeights,
}

impl Ask {
    fn load(self) -> LoadOptions {
        let options = LoadOptions::new().quantized(self.quantized);
        match self.to {
            Some(to) => options.all_as(to),
            None => options,
        }
    }
}

/// The file as a load with the options opens it.
type Opened = Checkpoint<Computed<Assembled>>;

type Lazy<'a> = LazyTensor<'a, Computed<Assembled>>;

/// Reads `w` in one way. `None` if the way does not read as the file has it.
type Way = fn(&Opened, Ask) -> Option<Result<TensorBuf>>;

/// The ways, by the names that the table has for them.
const WAYS: [(&str, Way); 31] = [
    ("`LazyTensor::read`", |file, ask| is_as_stored(ask).then(|| w(file).read())),
    ("`LazyTensor::pieces`", |file, ask| {
        let mut pieces = w(file).pieces();
        is_as_stored(ask).then(|| pieces.next().unwrap().read())
    }),
    ("`LazyTensor::read_with`", |file, ask| Some(w(file).read_with(&ask.load()))),
    ("`LazySlice::read_with`", |file, ask| {
        Some(w(file).slice((.., ..)).and_then(|slice| slice.read_with(&ask.load())))
    }),
    ("a file without a checkpoint", |file, ask| {
        let source = file.files()[0].safetensors().source().clone();
        let file = SafeTensors::from_source(source).unwrap();
        Some(file.tensor("w").unwrap().read_with(&ask.load()))
    }),
    ("`load::read_tensors`", |file, ask| Some(first(read_tensors(&[w(file)], &ask.load())))),
    ("`load::read_slices`", |file, ask| {
        let slice = w(file).slice((.., ..)).unwrap();
        Some(first(read_slices(&[slice], &ask.load())))
    }),
    ("`Checkpoint::read_named`", |file, ask| Some(first(file.read_named(["w"], &ask.load())))),
    ("`Checkpoint::read_parts`", |file, ask| {
        Some(first(file.read_parts([("w", TensorPart::Whole)], &ask.load())))
    }),
    ("`AsyncStore::load`", |file, ask| {
        let (store, (file, _)) = fetched(file);
        Some(first(block_on(store.load(&[file.tensor("w").unwrap()], &ask.load()))))
    }),
    ("`AsyncStore::run`", |file, ask| {
        let (store, (file, _)) = fetched(file);
        Some(block_on(store.run(|_| file.tensor("w")?.read_with(&ask.load()))))
    }),
    ("`framework::read_staged`", |file, ask| Some(staged(w(file), &ask.load()))),
    ("`RankPlan::read`", |file, ask| {
        let rules = RankRules::new().parse_rule("*=replicate").unwrap();
        let plan = rules.plan(file, 1).unwrap();
        let position = plan.tensors().position(|tensor| tensor.name() == "w").unwrap();
        Some(plan.read(file, 0, &ask.load()).map(|mut bufs| bufs.swap_remove(position)))
    }),
    ("`convert::Converted`", |file, ask| {
        Some(
            Converted::new(w(file), ask.to?, &ConvertOptions::new())
                .and_then(|source| saved(&source)),
        )
    }),
    ("`convert::Converted` of a slice", |file, ask| {
        let slice = w(file).slice((.., ..)).unwrap();
        Some(
            Converted::new(slice, ask.to?, &ConvertOptions::new())
                .and_then(|source| saved(&source)),
        )
    }),
    ("`Rewrite::cast`", |file, ask| Some(rewritten(Rewrite::from_checkpoint(file), ask))),
    ("`Rewrite::cast` of added tensors", |file, ask| {
        let mut rewrite = Rewrite::new();
        for tensor in file.tensors() {
            rewrite = rewrite.add(tensor.name(), tensor.read().unwrap()).unwrap();
        }
        Some(rewritten(rewrite, ask))
    }),
    ("`Rewrite::cast` of ranks' parts", |file, ask| {
        let dir = tempfile::tempdir().unwrap();
        let rules = RankRules::new().parse_rule("*=split:0").unwrap();
        let rewrite = Rewrite::from_checkpoint(file);
        let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new()).unwrap();
        rewrite.save_ranks(dir.path(), &plan, "1", &ShardOptions::new()).unwrap();
        let divided = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(divided.len(), file.len());
        Some(rewritten(Rewrite::from_checkpoint(&divided), ask))
    }),
    ("ndarray `load_with`", |file, ask| Some(loaded::<Ndarray>(file, &(), ask))),
    ("ndarray `TensorCache`", |file, ask| Some(cached::<Ndarray>(file, (), ask))),
    ("ndarray `Reader`", |file, ask| {
        let reader = Reader::open(path(file)).unwrap().quantized(ask.quantized).unwrap();
        Some(match ask.to? {
            Dtype::F32 => reader.slice_as::<f32, _>("w", s![.., ..]).map(array),
            to => panic!("no test asks for {to}"),
        })
    }),
    ("ndarray `read_array_as`", |file, ask| {
        ask.to?;
        Some(w(file).read_array_as::<f32, ndarray::IxDyn>(&ConvertOptions::new()).map(array))
    }),
    ("candle `load_with`", |file, ask| Some(loaded::<Candle>(file, &Device::Cpu, ask))),
    ("candle `TensorCache`", |file, ask| Some(cached::<Candle>(file, Device::Cpu, ask))),
    ("candle `VarBuilder`", |file, ask| {
        let dtype = candle_dtype(file, ask)?;
        let backend = CheckpointBackend::new_with(again(file), &ask.load()).unwrap();
        let builder = backend.var_builder(dtype, &Device::Cpu);
        Some(of_candle(builder.get(SHAPE.as_slice(), "w")))
    }),
    ("candle `VarBuilder`, fetched", |file, ask| {
        let dtype = candle_dtype(file, ask)?;
        let (_store, (file, _fetched)) = fetched(file);
        let backend = CheckpointBackend::new_with(file, &ask.load()).unwrap();
        let builder = backend.var_builder(dtype, &Device::Cpu);
        Some(of_candle(builder.get(SHAPE.as_slice(), "w")))
    }),
    ("candle tensor parallel", |file, ask| {
        let dtype = candle_dtype(file, ask)?;
        let backend = TensorParallelBackend::new_with(again(file), &ask.load()).unwrap();
        let builder = backend.var_builder(dtype, &Device::Cpu);
        Some(of_candle(builder.get_with_hints(SHAPE.as_slice(), "w", Shard::default())))
    }),
    ("burn `load_with`", |file, ask| Some(loaded::<Burn>(file, &(), ask))),
    ("burn `TensorCache`", |file, ask| Some(cached::<Burn>(file, (), ask))),
    ("burn `CheckpointStore`", |file, ask| {
        Some(of_burn(CheckpointStore::from_file(path(file)), ask))
    }),
    ("burn `CheckpointStore`, fetched", |file, ask| {
        let (_store, (file, _fetched)) = fetched(file);
        Some(of_burn(CheckpointStore::from_checkpoint(file), ask))
    }),
];

type InMemory = (Checkpoint<AsyncFile<RemoteFile>>, Fetched<RemoteFile>);

/// Opens the file as one that is read asynchronously, a few bytes at a time; its tensors are in
/// memory as long as the last value is.
fn fetched(
    file: &Opened,
) -> (AsyncStore<RemoteFile, impl Fn(PathBuf) -> Opening + Send + Sync + use<>>, InMemory) {
    let path = path(file);
    let bytes = std::fs::read(path).unwrap();
    let store = Arc::new(Server::new([(path, bytes)]).requests(16, 2)).store();
    let file = block_on(Checkpoint::open_async(&store, path, &Limits::default())).unwrap();
    // Looks for the settings next to the file.
    block_on(store.run(|_| file.quantized_weights())).unwrap();
    let tensors: Vec<_> = file.tensors().collect();
    let fetched = block_on(store.fetch(&tensors, &LoadOptions::new())).unwrap();
    (store, (file, fetched))
}

/// Loads a module of burn.
fn of_burn(store: CheckpointStore, ask: Ask) -> Result<TensorBuf> {
    let mut store = store.load_options(ask.load());
    let mut module = Weights { w: Param::from_data([[0.0; 2]; 2], &Default::default()) };
    module.load_from(&mut store).map(|_| {
        let data = module.w.to_data();
        let source = Burn::source(&data).unwrap();
        saved(&source).unwrap()
    })
}

#[derive(Module, Debug)]
struct Weights {
    w: Param<Tensor<2>>,
}

fn path(file: &Opened) -> &Path {
    file.files()[0].path()
}

/// Opens the file as it is stored, once more.
fn again(file: &Opened) -> Checkpoint {
    Checkpoint::open(path(file)).unwrap()
}

/// Returns the dtype of a model of candle. A model asks for its own, and none holds complex
/// numbers.
fn candle_dtype(file: &Opened, ask: Ask) -> Option<DType> {
    match ask.to.unwrap_or(w(file).dtype()) {
        Dtype::F8_E4M3 => Some(DType::F8E4M3),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

fn of_candle(tensor: candle_core::Result<candle_core::Tensor>) -> Result<TensorBuf> {
    let tensor = tensor.into_core()?;
    saved(&Candle::source(&tensor)?)
}

fn is_as_stored(ask: Ask) -> bool {
    ask.to.is_none()
}

fn w(file: &Opened) -> Lazy<'_> {
    file.tensor("w").unwrap()
}

fn first(bufs: Result<Vec<TensorBuf>>) -> Result<TensorBuf> {
    bufs.map(|mut bufs| bufs.remove(0))
}

fn array<D: ndarray::Dimension>(array: ndarray::Array<f32, D>) -> TensorBuf {
    TensorBuf::from_vec(SHAPE.to_vec(), array.iter().copied().collect()).unwrap()
}

/// Returns the tensor that a save of a source writes.
fn saved(source: &dyn TensorSource) -> Result<TensorBuf> {
    let file = SafeTensors::from_source(serialize([("w", source)], &SaveOptions::new())?)?;
    file.tensor("w")?.read()
}

/// Saves with a conversion, and reads the result.
fn rewritten(rewrite: Rewrite<'_, impl ReadAt>, ask: Ask) -> Result<TensorBuf> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let to = |name: &str| ask.to.filter(|_| name == "w");
    rewrite.cast(&ConvertOptions::new(), |name, _| to(name))?.save(&path, &SaveOptions::new())?;
    Checkpoint::open(&path)?.tensor("w")?.read()
}

fn loaded<F: Framework>(file: &Opened, device: &F::Device, ask: Ask) -> Result<TensorBuf> {
    as_written::<F>(&load::<F>(&again(file), device, &ask.load())?["w"])
}

fn cached<F: Framework>(file: &Opened, device: F::Device, ask: Ask) -> Result<TensorBuf> {
    let cache = TensorCache::<F>::new(again(file), device, 1 << 10, &ask.load())?;
    as_written::<F>(&*cache.get("w", (..,))?)
}

fn as_written<F: Framework>(tensor: &F::Tensor) -> Result<TensorBuf> {
    let (dtype, shape, bytes) = written::<F>(tensor);
    TensorBuf::from_view(&TensorView::new(dtype, &shape, &bytes)?)
}

/// Reads a tensor through slots, as onto a device.
fn staged(tensor: Lazy<'_>, options: &LoadOptions) -> Result<TensorBuf> {
    struct Memory(Vec<u8>, Option<Vec<u64>>);
    impl Staging for Memory {
        type Slot = Vec<u64>;

        fn new_slot(&mut self, len: usize) -> Result<Vec<u64>> {
            Ok(vec![0; len.div_ceil(8)])
        }

        fn bytes_mut(slot: &mut Vec<u64>) -> Result<&mut [u8]> {
            Ok(bytemuck::cast_slice_mut(slot))
        }

        fn begin_copy(&mut self, slot: Vec<u64>, parts: &[StagedPart]) -> Result<()> {
            for part in parts {
                self.0.extend(&bytemuck::cast_slice(&slot)[part.slot.clone()]);
            }
            self.1 = Some(slot);
            Ok(())
        }

        fn finish_copy(&mut self) -> Result<Vec<u64>> {
            Ok(self.1.take().unwrap())
        }
    }
    let loaded = tensor.dtype_plan(options)?;
    let mut memory = Memory(Vec::new(), None);
    let ring = StagingBuffers { slots: 1, slot_bytes: 128 };
    read_staged(&[tensor], options, ring, &mut memory)?;
    let shape = loaded.shape(tensor.shape());
    TensorBuf::from_view(&TensorView::new(loaded.dtype(), &shape, &memory.0)?)
}

/// A kind of tensor and a request, with the heading of its column.
struct Kind {
    heading: &'static str,
    tensors: fn() -> Vec<(&'static str, TensorBuf)>,
    ask: Ask,
    /// The numbers, wherever there are any.
    numbers: &'static [f64],
}

const AS_STORED: Ask = Ask { to: None, quantized: QuantizedWeights::Refuse };
const AS_F32: Ask = Ask { to: Some(Dtype::F32), ..AS_STORED };
const CODES: [f32; 4] = [1.0, -2.0, 0.5, 448.0];

fn fp8() -> (&'static str, TensorBuf) {
    let codes = CODES.map(F8E4M3::from_f32).to_vec();
    ("w", TensorBuf::from_vec(SHAPE.to_vec(), codes).unwrap())
}

fn scaled() -> Vec<(&'static str, TensorBuf)> {
    vec![fp8(), ("w_scale", TensorBuf::from_vec(vec![2, 1], vec![0.5_f32, 3.0]).unwrap())]
}

const KINDS: [Kind; 7] = [
    Kind {
        heading: "BF16 as F32",
        tensors: || {
            let values = CODES.map(bf16::from_f32).to_vec();
            vec![("w", TensorBuf::from_vec(SHAPE.to_vec(), values).unwrap())]
        },
        ask: AS_F32,
        numbers: &[1.0, -2.0, 0.5, 448.0],
    },
    Kind {
        heading: "FP8",
        tensors: || vec![fp8()],
        ask: AS_STORED,
        numbers: &[1.0, -2.0, 0.5, 448.0],
    },
    Kind {
        heading: "FP8 with scales",
        tensors: scaled,
        ask: AS_STORED,
        numbers: &[1.0, -2.0, 0.5, 448.0],
    },
    Kind { heading: "the same as F32", tensors: scaled, ask: AS_F32, numbers: &[] },
    Kind {
        heading: "the same, `Numbers`",
        tensors: scaled,
        ask: Ask { quantized: QuantizedWeights::Numbers, ..AS_F32 },
        numbers: &[0.5, -1.0, 1.5, 1344.0],
    },
    Kind {
        heading: "the same, `Stored`",
        tensors: scaled,
        ask: Ask { quantized: QuantizedWeights::Stored, ..AS_F32 },
        numbers: &[1.0, -2.0, 0.5, 448.0],
    },
    Kind {
        heading: "C64 as F32",
        tensors: || {
            let values = [1.0, 2.0, 3.0, 4.0].map(|re| Complex::new(re, -re)).to_vec();
            vec![("w", TensorBuf::from_vec(SHAPE.to_vec(), values).unwrap())]
        },
        ask: AS_F32,
        numbers: &[1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0],
    },
];

/// Returns the result: a dtype, or the kind of the error.
fn outcome(name: &str, kind: &Kind, result: Option<Result<TensorBuf>>) -> String {
    match result {
        None => "–".into(),
        Some(Ok(buf)) => {
            let dtype = buf.dtype();
            let numbers = buf.convert(Dtype::F64, &ConvertOptions::new()).unwrap();
            let numbers = numbers.as_slice::<f64>().unwrap();
            assert_eq!(numbers, kind.numbers, "{name}: {} became {dtype}", kind.heading);
            dtype.to_string()
        }
        Some(Err(error)) => {
            let kind = format!("{:?}", error.kind());
            format!("`{}`", kind.split([' ', '(']).next().unwrap())
        }
    }
}

#[test]
fn every_way_to_read_takes_the_documented_decision() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let headings: Vec<_> = KINDS.iter().map(|kind| kind.heading).collect();
    let mut rows = WAYS.map(|(name, _)| vec![name.to_owned()]);
    for kind in &KINDS {
        save(&path, (kind.tensors)(), &SaveOptions::new()).unwrap();
        let file = prepare(Checkpoint::open(&path).unwrap(), &kind.ask.load()).unwrap();
        for (row, (name, way)) in rows.iter_mut().zip(WAYS) {
            row.push(outcome(name, kind, way(&file, kind.ask)));
        }
    }
    let mut table = format!("| way | {} |\n|---|", headings.join(" | "));
    table += &"---|".repeat(headings.len());
    for row in rows {
        table += &format!("\n| {} |", row.join(" | "));
    }
    let document = include_str!("../../../../docs/reading.md");
    assert!(document.contains(&table), "docs/reading.md should have this table:\n\n{table}\n");
}
