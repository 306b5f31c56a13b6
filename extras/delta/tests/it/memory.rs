//! The memory that large tensors take.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use safetensors_core::{Checkpoint, Dtype};
use safetensors_delta::{Chain, Encoding, make};
use safetensors_testing::files::write_hole;
use safetensors_testing::memory::{growth, resident};
use safetensors_testing::process::is_alone;

use crate::support::quick;

const SIZE: u64 = 24 << 20;

#[test]
fn a_tensor_larger_than_the_memory_is_compared_and_applied() {
    if !is_alone(a_tensor_larger_than_the_memory_is_compared_and_applied) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| {
        let path = directory.path().join(format!("{name}.safetensors"));
        write_hole(&path, [("w".into(), Dtype::U8, vec![SIZE])]);
        path
    });
    // Some of it does not compress.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    });
    let noise: Vec<u8> = noise.take(3 << 20).collect();
    let file = OpenOptions::new().write(true).open(&new).unwrap();
    file.write_all_at(&noise, SIZE / 2).unwrap();
    drop((file, noise));
    let [old, new] = [old, new].map(|path| Checkpoint::open(path).unwrap());
    for encoding in [Encoding::Xor, Encoding::Overwrite] {
        let path = directory.path().join(encoding.to_string());
        let options = quick().encoding(encoding);
        let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
        let (delta, grown) = growth(resident(), || make(&old, tensors, &path, &options).unwrap());
        assert!(grown < 12 << 20, "made with {} KiB", grown >> 10);
        let chain = Chain::new([delta]).unwrap();
        let applied = directory.path().join("applied");
        let options = quick().overwrite(true);
        let (_, grown) = growth(resident(), || chain.apply(&old, &applied, &options).unwrap());
        assert!(grown < 12 << 20, "applied with {} KiB", grown >> 10);
    }
}
