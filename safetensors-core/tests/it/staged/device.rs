//! A device that is memory of the host, and its view by loads.

use std::collections::VecDeque;

use safetensors_core::framework::{
    Framework, StagedPart, Staging, StagingBuffers, Support, read_staged,
};
use safetensors_core::load::read_tensors;

use crate::support::*;

/// A framework that widens the same dtypes as candle, and holds the rest.
pub(crate) struct Wide;

impl Framework for Wide {
    const NAME: &'static str = "wide";
    type Tensor = TensorBuf;
    type Device = ();

    fn support(dtype: Dtype) -> Support {
        match dtype {
            Dtype::BOOL => Support::Widened(Dtype::U8),
            Dtype::I8 => Support::Widened(Dtype::I16),
            Dtype::U64 => Support::Widened(Dtype::I64),
            Dtype::F8_E5M2 | Dtype::F4 => Support::Widened(Dtype::F16),
            Dtype::C64 => Support::Widened(Dtype::F32),
            _ => Support::Exact,
        }
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorBuf> {
        Ok(buf)
    }

    fn source(tensor: &TensorBuf) -> Result<impl TensorSource + '_> {
        Ok(tensor)
    }
}

/// The failure, and its call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    NewSlot(usize),
    BeginCopy(usize),
    FinishCopy(usize),
    PanicInCopy(usize),
}

/// Copies at the last moment: the bytes of a slot when its copy is waited for arrive. So a slot
/// that is filled too early spoils the tensor.
#[derive(Default)]
pub(crate) struct Device {
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) copying: VecDeque<(Vec<u64>, Vec<StagedPart>)>,
    pub(crate) fault: Option<Fault>,
    pub(crate) slots: usize,
    pub(crate) begun: usize,
    pub(crate) finished: usize,
    pub(crate) most_copying: usize,
    /// Called before a copy is waited for, with how many were begun.
    pub(crate) before_waiting: Option<Box<dyn FnMut(usize)>>,
}

fn failure() -> Error {
    ErrorKind::Io(std::io::Error::other("the device failed")).into()
}

impl Staging for Device {
    type Slot = Vec<u64>;

    fn new_slot(&mut self, len: usize) -> Result<Vec<u64>> {
        if self.fault == Some(Fault::NewSlot(self.slots)) {
            return Err(failure());
        }
        self.slots += 1;
        // A pattern, so that bytes that were not written are found.
        Ok(vec![0xaaaa_aaaa_aaaa_aaaa; len / 8])
    }

    fn bytes_mut(slot: &mut Vec<u64>) -> Result<&mut [u8]> {
        Ok(bytemuck::cast_slice_mut(slot))
    }

    fn begin_copy(&mut self, slot: Vec<u64>, parts: &[StagedPart]) -> Result<()> {
        assert!(self.fault != Some(Fault::PanicInCopy(self.begun)), "the device panics");
        if self.fault == Some(Fault::BeginCopy(self.begun)) {
            return Err(failure());
        }
        self.begun += 1;
        self.copying.push_back((slot, parts.to_vec()));
        self.most_copying = self.most_copying.max(self.copying.len());
        Ok(())
    }

    fn finish_copy(&mut self) -> Result<Vec<u64>> {
        if self.fault == Some(Fault::FinishCopy(self.finished)) {
            return Err(failure());
        }
        if let Some(wait) = &mut self.before_waiting {
            wait(self.begun);
        }
        let (slot, parts) = self.copying.pop_front().expect("a copy was begun");
        for part in parts {
            let place = &mut self.tensors[part.tensor][part.offset..][..part.slot.len()];
            assert!(*place == vec![0xee; place.len()], "copied twice");
            place.copy_from_slice(&bytemuck::cast_slice::<u64, u8>(&slot)[part.slot]);
        }
        self.finished += 1;
        Ok(slot)
    }
}

impl Device {
    /// A device with memory for tensors of these lengths.
    pub(crate) fn with(lens: impl Iterator<Item = usize>) -> Self {
        Self { tensors: lens.map(|len| vec![0xee; len]).collect(), ..Self::default() }
    }

    /// A device with memory for these tensors, as they are loaded.
    pub(crate) fn new<S: ReadAt>(tensors: &[LazyTensor<'_, S>], options: &LoadOptions) -> Self {
        let bufs = read_tensors(tensors, options).unwrap();
        Self::with(bufs.iter().map(|buf| buf.bytes().len()))
    }
}

/// Loads all tensors of a checkpoint through a ring, and compares them with
/// [`Checkpoint::read_all`].
pub(crate) fn check<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    options: &LoadOptions,
    ring: StagingBuffers,
) -> Device {
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let expected = checkpoint.read_all(options).unwrap();
    let mut device = Device::with(expected.iter().map(|buf| buf.bytes().len()));
    read_staged(&tensors, options, ring, &mut device).unwrap();
    for ((tensor, buf), found) in tensors.iter().zip(&expected).zip(&device.tensors) {
        assert!(buf.bytes() == found, "{} {:?} {ring:?}", tensor.dtype(), tensor.shape());
    }
    assert!(device.slots <= ring.slots.max(1) && device.most_copying <= device.slots);
    assert_eq!(device.begun, device.finished);
    device
}
