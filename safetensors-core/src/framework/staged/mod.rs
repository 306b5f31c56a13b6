//! [`read_staged()`]: tensors read through a few buffers, from which a device copies them.
//! [`parts`] assigns bytes to buffers, [`ring`] orders reads and copies.

mod parts;
mod ring;

use std::ops::Range;

use parts::StagedPlan;
use ring::Filler;

use crate::file::io::ReadAt;
use crate::file::io::page_cache::Unkept;
use crate::file::load::fused::ReadScratch;
use crate::file::load::tensor_read::TensorRead;
use crate::file::load::{LazyTensor, LoadOptions, one_a_file};
use crate::format::error::Result;
use crate::format::parallel::Meter;

/// Memory of the host that a device copies from, in slots of equal size, for
/// [`read_staged`](crate::framework::read_staged).
///
/// A slot is filled by a thread that reads, or copied from by the device:
/// [`begin_copy`](Staging::begin_copy) takes a filled slot away,
/// [`finish_copy`](Staging::finish_copy) gives it back.
///
/// All calls except [`bytes_mut`](Staging::bytes_mut) come from the thread that loads. After a
/// failure the device may still be copying, so wait for it before slots are freed.
pub trait Staging {
    /// The memory of a slot.
    type Slot: Send;

    /// Makes a slot of at least `len` bytes.
    ///
    /// # Errors
    ///
    /// The allocation fails.
    fn new_slot(&mut self, len: usize) -> Result<Self::Slot>;

    /// Returns the bytes of a slot, to be filled. They are aligned to 8 bytes.
    fn bytes_mut(slot: &mut Self::Slot) -> Result<&mut [u8]>;

    /// Begins to copy these parts of a slot into their tensors. May return before they are copied.
    /// An error should name the tensor.
    fn begin_copy(&mut self, slot: Self::Slot, parts: &[StagedPart]) -> Result<()>;

    /// Waits for the oldest copies that were not yet waited for, and gives back their slot.
    fn finish_copy(&mut self) -> Result<Self::Slot>;
}

/// A part of a tensor in a slot: elements in C order, in native byte order, and in the converted
/// dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedPart {
    /// The position of the tensor in the list to be read.
    pub tensor: usize,
    /// The start of the part in the tensor, in bytes.
    pub offset: usize,
    /// The bytes of the slot.
    pub slot: Range<usize>,
}

/// The memory that tensors are read through on their way to a device, at most `slots * slot_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingBuffers {
    /// The most slots; at least 1. Half of them should be enough for all threads that read, while
    /// the device copies from the others.
    pub slots: usize,
    /// The bytes of a slot; at least 128, at most 256 MiB. A larger tensor takes several slots, and
    /// small ones share one.
    pub slot_bytes: usize,
}

impl Default for StagingBuffers {
    /// 16 slots of 2 MiB: 32 MiB. A copy of 2 MiB is long enough for the full speed of PCIe.
    fn default() -> Self {
        Self { slots: 16, slot_bytes: 2 << 20 }
    }
}

/// Reads tensors in parallel into slots of host memory, and has each slot copied to a device at the
/// same time.
///
/// Elements are converted before they come into a slot. Slots may be copied in any order. A tensor
/// without elements has no parts. Progress counts read bytes. This takes a few hundred KiB for each
/// thread. Reserve the memory of the device first, which fails if the tensors are too large for it.
///
/// ```
/// use safetensors_core::framework::{StagingBuffers, StagedPart, Staging, read_staged};
/// use safetensors_core::{Checkpoint, LoadOptions, Result, SaveOptions, TensorView, save};
///
/// /// A device whose copies have ended when they begin.
/// struct Instant {
///     memory: Vec<Vec<u8>>,
///     copied: Vec<Vec<u64>>,
/// }
///
/// impl Staging for Instant {
///     type Slot = Vec<u64>;
///
///     fn new_slot(&mut self, len: usize) -> Result<Vec<u64>> {
///         Ok(vec![0; len.div_ceil(8)])
///     }
///
///     fn bytes_mut(slot: &mut Vec<u64>) -> Result<&mut [u8]> {
///         Ok(bytemuck::cast_slice_mut(slot))
///     }
///
///     fn begin_copy(&mut self, slot: Vec<u64>, parts: &[StagedPart]) -> Result<()> {
///         for part in parts {
///             let bytes = &bytemuck::cast_slice(&slot)[part.slot.clone()];
///             self.memory[part.tensor][part.offset..][..bytes.len()].copy_from_slice(bytes);
///         }
///         self.copied.insert(0, slot);
///         Ok(())
///     }
///
///     fn finish_copy(&mut self) -> Result<Vec<u64>> {
///         Ok(self.copied.pop().expect("a copy was begun"))
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// let values: Vec<u8> = (0..=255).collect();
/// save(&path, [("w", TensorView::from_slice(&[256], &values)?)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let tensors: Vec<_> = checkpoint.tensors().collect();
/// let mut device = Instant { memory: vec![vec![0; 256]], copied: Vec::new() };
/// let ring = StagingBuffers { slots: 2, slot_bytes: 128 };
/// read_staged(&tensors, &LoadOptions::new(), ring, &mut device)?;
/// assert_eq!(device.memory, [values]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As for [`read_tensors`](crate::load::read_tensors); any error of the device.
pub fn read_staged<S: ReadAt, T: Staging>(
    tensors: &[LazyTensor<'_, S>],
    options: &LoadOptions,
    ring: StagingBuffers,
    staging: &mut T,
) -> Result<()> {
    let wanted = tensors.iter().map(|tensor| TensorRead::whole(tensor, options));
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    let plan = StagedPlan::new(&wanted, options, ring.slot_bytes)?;
    let ring = StagingBuffers { slot_bytes: plan.slot_bytes(), ..ring };
    let progress = options.work.meter(plan.byte_len());
    let is_unkept = options.drops_page_cache(plan.byte_len());
    ring::run(&PlanFiller { plan, progress, is_unkept }, options.thread_count(), ring, staging)?;
    // A file that changed at the same time may have given bytes of both versions.
    for tensor in one_a_file(&wanted) {
        tensor.check_unchanged()?;
    }
    Ok(())
}

struct PlanFiller<'t> {
    plan: StagedPlan<'t>,
    progress: Meter,
    is_unkept: bool,
}

impl<T: Staging> Filler<T> for PlanFiller<'_> {
    type Scratch = ReadScratch;

    fn count(&self) -> usize {
        self.plan.len()
    }

    fn fill(&self, number: usize, slot: &mut T::Slot, scratch: &mut ReadScratch) -> Result<()> {
        let bytes = T::bytes_mut(slot)?;
        let unkept = Unkept::begin(self.is_unkept);
        self.plan.fill(number, bytes, scratch)?;
        drop(unkept);
        let parts = self.plan.parts(number);
        let Some(first) = parts.first() else { return Ok(()) };
        let bytes: usize = parts.iter().map(|part| part.slot.len()).sum();
        self.progress.add(bytes as u64, self.plan.tensor(first).info.name())
    }

    fn parts(&self, number: usize) -> &[StagedPart] {
        self.plan.parts(number)
    }
}
