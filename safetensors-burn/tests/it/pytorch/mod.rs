//! Layers of PyTorch: their files, and the outputs that PyTorch computed.
//!
//! `dev/scripts/pytorch_layers.py` wrote the fixtures.

mod attention;
mod bert;
mod failing;
mod layers;
mod options;
mod recipes;
mod recurrent;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleDisplay};
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use safetensors_burn::{CheckpointStore, ModuleSnapshot, load};
use tempfile::TempDir;

use super::{dir, place, source, state};

/// A model with one field, which has the name in the fixtures.
#[derive(Module, Debug)]
struct Net<L: Module> {
    layer: L,
}

fn fixture(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    directory.join(name).with_extension("safetensors")
}

/// A tensor of a fixture that is no parameter.
fn tensor<const D: usize, K: Basic>(name: &str, of: &str) -> Tensor<D, K> {
    let data = load(fixture(name)).unwrap().remove(of).unwrap();
    let dtype = data.dtype();
    Tensor::from_data(data, (&Device::default(), dtype))
}

fn input<const D: usize>(name: &str) -> Tensor<D> {
    tensor(name, "input")
}

/// Returns the tensors of a file that belong to the layer.
fn layer_of(path: &Path) -> BTreeMap<String, TensorData> {
    let mut tensors = load(path).unwrap();
    // burn does not count the batches of a training. PyTorch does not need the number.
    tensors.retain(|name, _| name.starts_with("layer.") && !name.ends_with("num_batches_tracked"));
    tensors.into_iter().collect()
}

/// Loads a fixture into a layer of other values, and saves the layer. The file must have the
/// tensors of the fixture. Returns the layer.
fn loaded<L: Module + ModuleDisplay>(name: &str, layer: L) -> L {
    remapped(name, layer, [], [])
}

/// Checks a layer with rules for the names when it is loaded, and when it is saved.
fn remapped<'a, L: Module + ModuleDisplay>(
    name: &str,
    layer: L,
    on_load: impl IntoIterator<Item = (&'a str, &'a str)>,
    on_save: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> L {
    let store = |path: &Path, rules: &mut dyn Iterator<Item = (&'a str, &'a str)>| {
        rules.fold(CheckpointStore::from_file(path).pytorch(true), |store, (from, to)| {
            store.with_key_remapping(from, to)
        })
    };
    let mut net = Net { layer };
    let result = net.load_from(&mut store(&fixture(name), &mut on_load.into_iter())).unwrap();
    assert!(result.errors.is_empty() && result.skipped.is_empty(), "{result}");
    let expected_unused = ["input", "memory", "output"];
    assert!(result.unused.iter().all(|name| expected_unused.contains(&&**name)), "{result}");

    let (_dir, path) = place("saved.safetensors");
    net.save_into(&mut store(&path, &mut on_save.into_iter())).unwrap();
    let (saved, expected) = (layer_of(&path), layer_of(&fixture(name)));
    assert!(!expected.is_empty());
    assert!(saved.keys().eq(expected.keys()), "{saved:?}");
    assert_eq!(saved, expected, "{name}");
    net.layer
}

/// Fails unless the output is PyTorch's.
fn assert_output<const D: usize>(name: &str, output: Tensor<D>) {
    let expected = load(fixture(name)).unwrap().remove("output").unwrap();
    output.into_data().assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-4, 1e-5));
}
