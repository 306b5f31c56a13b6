//! Tensors on their way to a device take the memory of the slots and little more.

use std::collections::VecDeque;

use safetensors_core::framework::{StagedPart, Staging, StagingBuffers, read_staged};
use safetensors_testing::files::write_hole;
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

use crate::support::*;

const MIB: u64 = 1 << 20;

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
    if !is_alone(staging_takes_the_slots_and_16_mib_at_most) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    // One tensor of 256 MiB, and 1,000 small ones. The file is a hole except for its header.
    let lens = (0..1001_u64).map(|i| if i == 0 { 256 * MIB } else { 16 * 1024 });
    let tensors = lens.enumerate().map(|(i, len)| (format!("t{i}"), Dtype::BF16, vec![len / 2]));
    let end = write_hole(&path, tensors);

    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let before = peak();
    let ring = StagingBuffers::default();
    assert_eq!(ring.slots * ring.slot_bytes, 32 << 20);
    let plain = LoadOptions::new().threads(8);
    for (options, factor) in [(plain.clone(), 1), (plain.floats_as(Dtype::F32), 2)] {
        let mut device = Large::default();
        read_staged(&tensors, &options, ring, &mut device).unwrap();
        assert_eq!(device.arrived, factor * end);
        let taken = peak() - before;
        assert!(taken < (32 + 16) * MIB, "{} MiB", taken / MIB);
    }
}
