//! The checkpoints and adapters of `dev/scripts/lora_fixtures.py`, with PEFT's results.

use std::path::{Path, PathBuf};
use std::{env, fs};

use safetensors_core::lora::Adapter;
use safetensors_core::{Checkpoint, Dtype, TensorBuf};

/// A checkpoint, the adapters that are merged into it, and the result.
#[derive(Clone, Debug)]
pub struct Merge {
    /// The name of the folder, such as `exact-rank-1`.
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
}

impl Merge {
    /// Returns all fixtures, sorted by their names. A test runs in the folder of its package, which
    /// is a sibling of this package's.
    pub fn all() -> Vec<Self> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let entries = fs::read_dir(package.join("fixtures/lora")).unwrap();
        let mut all: Vec<_> = entries
            .map(|entry| {
                let directory = entry.unwrap().path();
                let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
                Self { name, directory }
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 15, "found {} fixtures", all.len());
        all
    }

    /// The fixture of this name.
    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|fixture| fixture.name == name).unwrap()
    }

    /// Returns the checkpoint before the merge.
    pub fn base(&self) -> Checkpoint {
        Checkpoint::open(self.model()).unwrap()
    }

    /// Returns the path of its only file.
    pub fn model(&self) -> PathBuf {
        self.directory.join("model.safetensors")
    }

    /// Returns the paths of the adapters, in their order.
    pub fn paths(&self) -> Vec<PathBuf> {
        let numbered = |number| {
            let path = self.directory.join(format!("adapter-{number}"));
            if path.exists() { path } else { path.with_extension("safetensors") }
        };
        (1..).map(numbered).take_while(|path| path.exists()).collect()
    }

    /// Returns the adapters.
    pub fn adapters(&self) -> Vec<Adapter> {
        self.paths().iter().map(|path| Adapter::open(path).unwrap()).collect()
    }

    /// Returns the tensors that change, as the reference makes them.
    pub fn expected(&self) -> Checkpoint {
        Checkpoint::open(self.directory.join("expected.safetensors")).unwrap()
    }

    /// Returns the tensor of this name as the reference makes it, or as it is if it does not
    /// change.
    pub fn tensor(&self, name: &str) -> TensorBuf {
        let (expected, base) = (self.expected(), self.base());
        let tensor = expected.get(name).unwrap_or_else(|| base.tensor(name).unwrap());
        tensor.read().unwrap()
    }

    /// Compares numbers that were read as F32 with the expected ones. They have the same bits if
    /// sums are exact. Else the order of a sum may change the last bits of F32, and one of BF16.
    pub fn compare(&self, name: &str, found: &[f32]) {
        let expected = self.tensor(name);
        let dtype = expected.dtype();
        let expected = expected.convert(Dtype::F32, &Default::default()).unwrap();
        let expected = expected.as_slice::<f32>().unwrap();
        assert_eq!(found.len(), expected.len(), "{}: {name}", self.name);
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let tolerance = match dtype {
            _ if self.name.starts_with("exact") => 0.0,
            Dtype::BF16 => largest / 128.0,
            _ => 4.0 * f32::EPSILON * largest,
        };
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= tolerance,
                "{}: element {at} of {name}: found {found:e}, expected {expected:e}",
                self.name
            );
        }
    }
}
