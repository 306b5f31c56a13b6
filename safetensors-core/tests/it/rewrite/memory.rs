//! A checkpoint larger than memory, rewritten in little of it.

use safetensors_testing::files::write_hole;
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

use crate::support::*;

/// Re-shards and casts a checkpoint of 20 GiB, and measures the peak memory. Most of the checkpoint
/// is a hole in a sparse file.
///
/// `cargo test --release -p safetensors-core --test it -- --ignored --nocapture` (writes 15
/// GiB to the temp dir)
#[test]
#[ignore = "writes 15 GiB"]
fn twenty_gibibytes_are_resharded_in_little_memory() {
    if !is_alone(twenty_gibibytes_are_resharded_in_little_memory) {
        return;
    }
    let (dir, path) = place("model.safetensors");
    let tensors = 20_u64;
    let each = 1_u64 << 30;
    let named = (0..tensors).map(|i| (format!("layer.{i:02}"), Dtype::F32, vec![each / 4]));
    write_hole(&path, named);

    let checkpoint = Checkpoint::open(&path).unwrap();
    let started = std::time::Instant::now();
    let saved = Rewrite::from_checkpoint(&checkpoint)
        .cast(&ConvertOptions::new(), |name, _| (name < "layer.10").then_some(Dtype::BF16))
        .unwrap()
        .save_sharded(
            dir.path().join("shards"),
            &ShardOptions::new().save_options(SaveOptions::new().durable(false)),
        )
        .unwrap();
    assert_eq!(saved.total_size, 15 << 30);
    let peak = peak() >> 20;
    println!("{} files in {:.1?}, peak {peak} MiB", saved.files.len(), started.elapsed());
    assert!(peak < 256, "{peak} MiB");
}
