//! Tensors onto a CUDA device: some are copied from pinned memory while others are read.
// The device reads pinned memory directly, so a copy continues after the call that began it, and
// cudarc does not protect the memory: `CudaStream::memcpy_htod` takes a `&[u8]` of pinned memory
// and returns at once. A `PinnedHostSlice` waits for copies only if the context has its own
// streams, and candle's devices use the stream of the calling thread. So each `Slot` has an event,
// which is recorded after every copy and waited for before the slot is given back.
// `Staged::copying` has the slots with running copies, and its `Drop` waits for the device.
//
// Four calls are `unsafe`, in this file only: they allocate uninitialised memory of the host and of
// the device, clear the host's, and write the memory of a tensor as bytes.
//
// All calls to the device but `Staging::bytes_mut` come from the loading thread, on the device's
// stream, where they run in order. Streams of other threads do not wait for this one, so it is
// waited for before the tensors are handed out.

#![allow(unsafe_code, reason = "memory that a device copies from is lent to it, not to Rust")]

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, CudaViewMut, DeviceRepr, DriverError, PinnedHostSlice,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Device, Shape, Storage, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};
use safetensors_core::framework::{StagedPart, Staging, StagingBuffers, read_staged};
use safetensors_core::{Dtype, Error, LazyTensor, LoadOptions, ReadAt, Result};

use crate::Candle;
use crate::dtype::for_each_dtype;
use crate::error::{cannot_place, from_candle_error};

/// The least bytes that are read through pinned memory.
// Pinning memory takes longer than copying fewer bytes without it.
const PINNED: u64 = 4 << 20;

pub(crate) fn is_faster<S>(tensors: &[LazyTensor<'_, S>]) -> bool {
    let bytes = tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.byte_len()));
    bytes >= PINNED
}

/// Reads tensors through at most 32 MiB of pinned memory.
// Memory of the device is allocated first, so tensors that do not fit are an error before anything
// is read.
pub(crate) fn read<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    device: &CudaDevice,
    options: &LoadOptions,
) -> Result<Vec<Tensor>> {
    let options = options.clone().for_framework::<Candle>();
    let mut staged = Staged::new(tensors, device, &options)?;
    read_staged(tensors, &options, StagingBuffers::default(), &mut staged)?;
    staged.into_tensors()
}

struct Staged<'t, 'a, S> {
    tensors: &'t [LazyTensor<'a, S>],
    memory: Vec<(CudaStorageSlice, Shape)>,
    /// The slots that the device copies from, the oldest first.
    copying: VecDeque<Slot>,
    device: CudaDevice,
    stream: Arc<CudaStream>,
}

/// Pinned memory, and the event that its last copy has ended.
struct Slot {
    memory: PinnedHostSlice<u8>,
    copied: CudaEvent,
}

impl<'t, 'a, S> Staged<'t, 'a, S> {
    fn new(
        tensors: &'t [LazyTensor<'a, S>],
        device: &CudaDevice,
        options: &LoadOptions,
    ) -> Result<Self>
    where
        S: ReadAt,
    {
        let stream = device.cuda_stream();
        let allocate = |tensor: &LazyTensor<'a, S>| {
            let loaded = tensor.dtype_plan(options)?;
            let shape = Shape::from(loaded.shape(tensor.shape()));
            let memory = cuda_memory(loaded.dtype(), shape.elem_count(), &stream);
            let place = Device::Cuda(device.clone());
            let failed = |error| tensor.locate(cannot_place(loaded.dtype(), &place, error));
            Ok((memory.map_err(failed)?, shape))
        };
        let memory = tensors.iter().map(allocate).collect::<Result<_>>()?;
        let (copying, device) = (VecDeque::new(), device.clone());
        Ok(Self { tensors, memory, copying, device, stream })
    }

    fn into_tensors(mut self) -> Result<Vec<Tensor>> {
        self.stream.synchronize().map_err(failed("copy to"))?;
        let tensor = |(slice, shape)| {
            let storage = CudaStorage { slice, device: self.device.clone() };
            Tensor::from((Storage::Cuda(storage), shape))
        };
        Ok(mem::take(&mut self.memory).into_iter().map(tensor).collect())
    }

    /// Begins to copy a part of a slot into the memory of its tensor.
    fn copy(&mut self, slot: &[u8], part: &StagedPart) -> Result<()> {
        let Self { memory, stream, .. } = self;
        let tensor = memory.get_mut(part.tensor);
        let mut tensor = tensor.and_then(|(memory, _)| cuda_bytes_mut(memory));
        let end = part.offset + part.slot.len();
        let place = tensor.as_mut().and_then(|tensor| tensor.try_slice_mut(part.offset..end));
        let (Some(mut place), Some(bytes)) = (place, slot.get(part.slot.clone())) else {
            return Err(from_candle_error(candle_core::Error::msg("a part outside of its tensor")));
        };
        stream.memcpy_htod(bytes, &mut place).map_err(failed("copy to"))
    }
}

impl<S> Staging for Staged<'_, '_, S> {
    type Slot = Slot;

    fn new_slot(&mut self, len: usize) -> Result<Slot> {
        let context = self.stream.context();
        let new = || {
            // Without flags: memory that the processor caches. Write-combined memory, which cudarc
            // has by default, is slow to read, and conversions may read the bytes that they have
            // written.
            //
            // SAFETY: the memory is uninitialised, and is set to zero below before it is lent.
            let mut memory = unsafe { context.alloc_pinned_with_flags::<u8>(len, 0)? };
            let start = memory.as_mut_ptr()?;
            // SAFETY: the allocation has `len` bytes from `start` on, and no other code knows of
            // it.
            unsafe { start.write_bytes(0, len) };
            // The thread sleeps while it waits, and leaves the core to the threads that read.
            let copied = context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC))?;
            Ok(Slot { memory, copied })
        };
        new().map_err(failed("allocate pinned memory for"))
    }

    fn bytes_mut(slot: &mut Slot) -> Result<&mut [u8]> {
        slot.memory.as_mut_slice().map_err(failed("use the pinned memory of"))
    }

    fn begin_copy(&mut self, mut slot: Slot, parts: &[StagedPart]) -> Result<()> {
        let bytes = Self::bytes_mut(&mut slot)?;
        let begun = parts.iter().try_for_each(|part| {
            self.copy(bytes, part).map_err(|error| match self.tensors.get(part.tensor) {
                Some(tensor) => tensor.locate(error),
                None => error,
            })
        });
        // Also if a copy failed: those before it may have begun.
        let recorded = slot.copied.record(&self.stream).map_err(failed("copy to"));
        self.copying.push_back(slot);
        begun.and(recorded)
    }

    fn finish_copy(&mut self) -> Result<Slot> {
        if let Some(slot) = self.copying.front() {
            slot.copied.synchronize().map_err(failed("copy to"))?;
        }
        let none = || from_candle_error(candle_core::Error::msg("no copy was begun"));
        self.copying.pop_front().ok_or_else(none)
    }
}

/// Waits for the device before the slots that it copies from are freed.
impl<S> Drop for Staged<'_, '_, S> {
    fn drop(&mut self) {
        // cudarc keeps errors that it could not return, and the next call of any kind returns them.
        // So a call that fails is made again.
        let wait = || self.stream.synchronize();
        if !self.copying.is_empty() && wait().is_err() && wait().is_err() {
            // The device may still copy. Memory that is lost does less harm than memory that is
            // freed too early.
            mem::forget(mem::take(&mut self.copying));
        }
    }
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let error = candle_core::Error::Cuda(Box::new(error));
        from_candle_error(error.context(format!("cannot {what} the CUDA device")))
    }
}

/// Allocates uninitialised memory.
fn allocate<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    elements: usize,
) -> candle_core::Result<CudaSlice<T>> {
    // The driver does not allocate 0 bytes.
    let elements = elements.max(1);
    // SAFETY: the memory is uninitialised. It becomes a tensor only after every part of it has been
    // copied: `Staged` hands out tensors only after `read_staged` has succeeded. The one element of
    // a tensor that has none is outside of the tensor's shape.
    unsafe { stream.alloc::<T>(elements) }.w()
}

fn bytes_mut<T>(slice: &mut CudaSlice<T>) -> Option<CudaViewMut<'_, u8>> {
    // SAFETY: the view has the same bytes, and any byte is a `u8`. The bytes that are written to it
    // are elements of `T` in native byte order: numbers, for which all bit patterns are valid.
    unsafe { slice.transmute_mut::<u8>(slice.num_bytes()) }
}

macro_rules! define_memory {
    (
        exact { $($exact:ident = $exact_candle:ident as $element:ty,)* }
        raw { $($raw:ident = $raw_candle:ident as $raw_element:ident,)* }
        widened { $($narrow:ident to $wide:ident,)* }
    ) => {
        /// Allocates uninitialised memory for this many elements.
        fn cuda_memory(
            dtype: Dtype,
            elements: usize,
            stream: &Arc<CudaStream>,
        ) -> candle_core::Result<CudaStorageSlice> {
            match dtype {
                $(Dtype::$exact => {
                    let memory = allocate::<$element>(stream, elements)?;
                    Ok(CudaStorageSlice::$exact_candle(memory))
                })*
                dtype => candle_core::bail!("candle stores {dtype} elements on the CPU only"),
            }
        }

        fn cuda_bytes_mut(memory: &mut CudaStorageSlice) -> Option<CudaViewMut<'_, u8>> {
            match memory {
                $(CudaStorageSlice::$exact_candle(slice) => bytes_mut(slice),)*
                _ => None,
            }
        }
    };
}

for_each_dtype!(define_memory);
