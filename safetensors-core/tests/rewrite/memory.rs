//! A checkpoint larger than memory, rewritten in little of it.

use std::fs::{self, File};
use std::io::Write;

use safetensors_core::{Checkpoint, ConvertOptions, Dtype, Rewrite, SaveOptions, ShardOptions};

/// Re-shards and casts a checkpoint of 20 GiB, and measures the peak memory. Most of the checkpoint
/// is a hole in a sparse file.
///
/// `cargo test --release -p safetensors-core --test rewrite -- --ignored --nocapture` (writes 15
/// GiB to the temp dir)
#[test]
#[ignore = "writes 15 GiB"]
fn twenty_gibibytes_are_sharded_anew_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = 20_u64;
    let each = 1_u64 << 30;
    let entries: Vec<_> = (0..tensors)
        .map(|i| {
            format!(
                r#""layer.{i:02}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}"#,
                each / 4,
                i * each,
                (i + 1) * each
            )
        })
        .collect();
    let json = format!("{{{}}}", entries.join(","));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + tensors * each).unwrap();
    drop(file);

    let checkpoint = Checkpoint::open(&path).unwrap();
    let started = std::time::Instant::now();
    let saved = Rewrite::of(&checkpoint)
        .cast(&ConvertOptions::new(), |name, _| (name < "layer.10").then_some(Dtype::BF16))
        .unwrap()
        .save_sharded(
            dir.path().join("shards"),
            &ShardOptions::new().save_options(SaveOptions::new().durable(false)),
        )
        .unwrap();
    assert_eq!(saved.total_size, 15 << 30);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!("{} files in {:.1?}, {peak}", saved.files.len(), started.elapsed());
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 256 * 1024, "{peak} KiB");
}
