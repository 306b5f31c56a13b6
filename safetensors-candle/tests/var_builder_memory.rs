//! Building a model takes the memory of its tensors, 32 MiB, and what is read ahead at most. This
//! test is a program of its own, because the peak is measured for the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;

use candle_core::{DType, Device, Tensor};
use safetensors_candle::CheckpointBackend;
use safetensors_core::Checkpoint;

const MIB: u64 = 1 << 20;

/// A value of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Does some work, and returns how far the peak of the process's memory was above `before` then.
fn growth<T>(before: u64, work: impl FnOnce() -> T) -> (T, u64) {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let done = work();
    (done, status("VmHWM:").saturating_sub(before))
}

#[track_caller]
fn assert_within(taken: u64, tensors: u64, ahead: u64) {
    let most = tensors + ahead + 32 * MIB;
    assert!(taken <= most, "{} MiB, at most {} MiB", taken / MIB, most / MIB);
}

#[test]
fn memory_stays_within_the_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // 48 layers of a tensor of 4 MiB and one of 64 KiB. The file is a hole except for its header.
    let lens = [4 * MIB, 64 * 1024];
    let names = (0..48).flat_map(|layer| ["large", "small"].map(|n| format!("h.{layer}.{n}")));
    let names: Vec<String> = names.collect();
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, len) in names.iter().zip(lens.iter().cycle()) {
        let (begin, shape) = (end, len / 2);
        end += len;
        entries.push(format!(
            r#""{name}":{{"dtype":"BF16","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let json = format!("{{{}}}", entries.join(","));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + end).unwrap();
    let open = || CheckpointBackend::new(Checkpoint::open(&path).unwrap());

    // The work that needs least comes first, because freed memory may stay with the process.
    let before = status("VmRSS:");

    // A model that drops each tensor before it asks for the next: what is read ahead, not more.
    for ahead in [0, 16 * MIB, 64 * MIB] {
        let ((), taken) = growth(before, || {
            let builder = open().read_ahead(ahead).var_builder(DType::BF16, &Device::Cpu);
            names.iter().for_each(|name| drop(builder.get_unchecked(name).unwrap()));
        });
        assert!(taken >= ahead / 4 * 3, "{} MiB", taken / MIB);
        assert_within(taken, 4 * MIB, ahead);
    }

    // A model that holds all of its tensors: nothing besides them, because what is read ahead is
    // handed out without a copy.
    for (dtype, size) in [(DType::BF16, end), (DType::F32, 2 * end)] {
        for is_prefetched in [false, true] {
            let (model, taken) = growth(before, || {
                let backend = open();
                if is_prefetched {
                    assert_eq!(backend.prefetch("", dtype).unwrap(), 96);
                }
                let builder = backend.var_builder(dtype, &Device::Cpu);
                let get = |name: &String| builder.get_unchecked(name).unwrap();
                names.iter().map(get).collect::<Vec<Tensor>>()
            });
            assert_eq!(model.len(), 96);
            assert!(taken >= size, "{} MiB", taken / MIB);
            assert_within(taken, size, 0);
        }
    }
}
