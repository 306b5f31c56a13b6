//! Tensors on their way to a device take the memory of the slots and little more. This test is a
//! program of its own, because the peak is measured for the whole process.
#![cfg(all(feature = "std", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write;

use safetensors_core::framework::{Ring, StagedPart, Staging, read_staged};
use safetensors_core::{Checkpoint, Dtype, LoadOptions, Result};

const MIB: u64 = 1 << 20;

/// The peak memory of the process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// A device with more memory than this machine.
#[derive(Default)]
struct Large {
    copying: VecDeque<Vec<u64>>,
    arrived: u64,
}

impl Staging for Large {
    type Slot = Vec<u64>;

    fn new_slot(&mut self, len: usize) -> Result<Vec<u64>> {
        Ok(vec![0; len / 8])
    }

    fn bytes_mut(slot: &mut Vec<u64>) -> Result<&mut [u8]> {
        Ok(bytemuck::cast_slice_mut(slot))
    }

    fn begin_copy(&mut self, slot: Vec<u64>, parts: &[StagedPart]) -> Result<()> {
        self.arrived += parts.iter().map(|part| part.slot.len() as u64).sum::<u64>();
        self.copying.push_back(slot);
        Ok(())
    }

    fn finish_copy(&mut self) -> Result<Vec<u64>> {
        Ok(self.copying.pop_front().unwrap())
    }
}

#[test]
fn staging_takes_the_slots_and_16_mib_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // One tensor of 256 MiB, and 1,000 small ones. The file is a hole except for its header.
    let lens = (0..1001_u64).map(|i| if i == 0 { 256 * MIB } else { 16 * 1024 });
    let mut entries = Vec::new();
    let mut end = 0;
    for (i, len) in lens.enumerate() {
        let (begin, shape) = (end, len / 2);
        end += len;
        entries.push(format!(
            r#""t{i}":{{"dtype":"BF16","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let json = format!("{{{}}}", entries.join(","));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + end).unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let before = peak();
    let ring = Ring::default();
    assert_eq!(ring.slots * ring.slot_bytes, 32 << 20);
    let plain = LoadOptions::new().threads(8);
    for (options, factor) in [(plain.clone(), 1), (plain.floats_as(Dtype::F32), 2)] {
        let mut device = Large::default();
        read_staged(&checkpoint, &tensors, &options, ring, &mut device).unwrap();
        assert_eq!(device.arrived, factor * end);
        let taken = peak() - before;
        assert!(taken < (32 + 16) * MIB, "{} MiB", taken / MIB);
    }
}
