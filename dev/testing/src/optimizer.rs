//! Training checkpoints of PyTorch, which `dev/scripts/optimizer_interop.py` makes.
//! `NAME.safetensors` is after some steps, and `NAME_after.safetensors` has the losses of the next
//! ones, and the later model and state, by the names of the parameters.

use std::path::{Path, PathBuf};

/// The parameters of the model, in the order in which the optimizer has them.
pub const NAMES: [&str; 4] = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];

/// Returns the path of a fixture.
pub fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/optimizer").join(file)
}

/// Makes a new folder for files that Python reads, if it asks for them.
pub fn interop_dir(name: &str) -> Option<PathBuf> {
    let dir = Path::new(&std::env::var_os("SAFETENSORS_INTEROP_DIR")?).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    Some(dir)
}

/// Returns the largest difference, as a part of the largest expected value.
pub fn largest_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let off = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (f64::from(*found) - f64::from(*expected)).abs());
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
    };
    largest(&mut { off }) / largest(&mut expected.iter().map(|value| f64::from(value.abs())))
}
