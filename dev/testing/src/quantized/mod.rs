//! The quantised checkpoints of `dev/scripts/quantised_fixtures.py`, by reference implementations.

mod cases;
mod read;
mod refused;

use std::path::{Path, PathBuf};
use std::{env, fs};

pub use cases::{Case, ONE, TWO, Tensors, floats, raw, words};
use safetensors_core::error::QuantizationProblem;
use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Checkpoint, Dtype, Error, ErrorKind, LoadOptions};

/// A checkpoint as its scheme stores it, and the result of the reference implementation.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The name of the folder, such as `gptq-v1-4bits`.
    pub name: String,
    /// The folder, with `model.safetensors` and perhaps `config.json`.
    pub directory: PathBuf,
}

impl Quantized {
    /// Returns all fixtures, sorted by their names. A test runs in the folder of its package, which
    /// is a sibling of this package's.
    pub fn all() -> Vec<Self> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let entries = fs::read_dir(package.join("fixtures/quantised")).unwrap();
        let mut all: Vec<_> = entries
            .map(|entry| {
                let directory = entry.unwrap().path();
                let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
                Self { name, directory }
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 30, "found {} fixtures", all.len());
        all
    }

    /// One fixture of each way to name codes, of each dtype that they have, and of stacked experts.
    pub fn kinds() -> Vec<Self> {
        let names = [
            "awq-gemm",
            "bnb-int8",
            "bnb-nf4",
            "bnb-nf4-bf16-storage",
            "comfy-nvfp4",
            "ct-int-channel",
            "ct-nvfp4",
            "deepseek-fp8-block",
            "deepseek-v4-experts-fp4",
            "deepseek-v4-fp8",
            "fbgemm-fp8-experts",
            "fp8-qscale-weight",
            "gpt-oss-mxfp4",
            "gptq-v1-4bits",
            "hqq-4bits",
            "mlx-4bits",
            "modelopt-nvfp4-experts",
            "quanto-qfloat8",
            "quanto-qint4",
            "torchao-float8",
            "torchao-int8",
        ];
        let mut all = Self::all();
        all.retain(|fixture| names.contains(&&*fixture.name));
        assert_eq!(all.len(), names.len());
        all
    }

    /// The fixture of this name.
    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|fixture| fixture.name == name).unwrap()
    }

    /// Returns the checkpoint.
    pub fn open(&self) -> Checkpoint {
        Checkpoint::open(self.model()).unwrap()
    }

    /// Returns the path of the checkpoint's only file.
    pub fn model(&self) -> PathBuf {
        self.directory.join("model.safetensors")
    }

    /// Returns the weights as the reference implementation dequantises them.
    pub fn expected(&self) -> Checkpoint {
        Checkpoint::open(self.directory.join("expected.safetensors")).unwrap()
    }

    /// Compares numbers that were read as F32 with the expected ones, after rounding to the dtype
    /// of the reference. Both zeros are equal, because references differ in them.
    pub fn compare(&self, name: &str, shape: &[usize], found: &[f32]) {
        let expected = self.expected();
        let expected = expected.tensor(name).unwrap();
        assert_eq!(shape, expected.shape(), "{}: {name}", self.name);
        let dtype = expected.dtype();
        let expected = expected.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
        let found = safetensors_core::TensorBuf::from_vec(shape.to_vec(), found.to_vec()).unwrap();
        let found = found.convert(dtype, &Default::default()).unwrap();
        let found = found.convert(Dtype::F32, &Default::default()).unwrap();
        let pairs =
            found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap());
        for (at, (found, expected)) in pairs.enumerate() {
            let is_same = found == expected || found.is_nan() && expected.is_nan();
            assert!(
                is_same,
                "{}: element {at} of {name} {shape:?} ({dtype}): found {found:e}, expected \
                 {expected:e}",
                self.name
            );
        }
    }
}

impl Case {
    /// Returns all cases: the ones that are read, and the ones that are refused.
    pub fn all() -> Vec<Self> {
        read::cases().into_iter().chain(refused::cases()).collect()
    }
}

/// Returns a weight, and the result of compressed-tensors for it by each scheme, under
/// `SCHEME/weight` and so on.
pub fn made_by_reference() -> Checkpoint {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    Checkpoint::open(package.join("fixtures/quantize.safetensors")).unwrap()
}

/// Checks the error of a read that would take the codes of a weight for numbers.
pub fn check_error(what: &str, error: &Error, weight: &QuantizedWeight) {
    let ErrorKind::Quantization { problem: QuantizationProblem::Codes { scheme, .. } } =
        error.kind()
    else {
        panic!("{what}: {error}")
    };
    assert_eq!(*scheme, weight.scheme, "{what}: {error}");
    let message = error.to_string();
    assert!(message.contains("QuantizedWeights::Numbers"), "{what}: {message}");
    assert!(error.file().is_some(), "{what}: {message}");
}
