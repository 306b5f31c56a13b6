//! [`StagedPlan`]: assigns parts of tensors to slots, and fills them.

use std::mem;
use std::ops::Range;

use super::StagedPart;
use crate::file::io::ReadRange;
use crate::file::load::fused::{ReadConversion, ReadScratch};
use crate::file::load::tensor_read::TensorRead;
use crate::file::load::{DtypePlan, LoadOptions, TensorPlace};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorBuf, shape, swap_on_big_endian};

// Aligns elements of all dtypes.
const ALIGNMENT: usize = 8;

// A part of any packed dtype has whole bytes if its elements are a multiple of this.
const GROUP: usize = 8;

// One group of the widest elements.
const SMALLEST_SLOT: usize = GROUP * 16;

// Larger slots gain nothing, and a `usize` can still count the bits of this one.
const LARGEST_SLOT: usize = 256 << 20;

struct Source<'t> {
    tensor: TensorPlace<'t>,
    loaded: DtypePlan,
    conversion: Option<ReadConversion<'t>>,
    bits: usize,
}

pub(super) struct StagedPlan<'t> {
    sources: Vec<Source<'t>>,
    fills: Vec<Vec<StagedPart>>,
    slot_bytes: usize,
    bytes: u64,
    options: &'t LoadOptions,
}

impl<'t> StagedPlan<'t> {
    /// Cuts large tensors, and lets small ones share a slot.
    pub(super) fn new(
        wanted: &'t [TensorRead<'t>],
        options: &'t LoadOptions,
        slot_bytes: usize,
    ) -> Result<Self> {
        let slot_bytes = slot_bytes.clamp(SMALLEST_SLOT, LARGEST_SLOT) / ALIGNMENT * ALIGNMENT;
        let mut plan =
            Self { sources: Vec::new(), fills: Vec::new(), slot_bytes, bytes: 0, options };
        let mut fill: Vec<StagedPart> = Vec::new();
        for (index, wanted) in wanted.iter().enumerate() {
            let source = Source::new(wanted, options);
            let (source, len) = source.map_err(|error| wanted.tensor.locate(error))?;
            // The longest part that is whole groups of elements.
            let longest = bytes_of(slot_bytes * 8 / source.bits / GROUP * GROUP, source.bits);
            let mut offset = 0;
            while offset < len {
                let used = fill.last().map_or(0, |part| part.slot.end.next_multiple_of(ALIGNMENT));
                let part = longest.min(len - offset);
                // The long parts of a large tensor take a slot each. The rest of the tensor may
                // share one with its neighbours.
                if part > slot_bytes - used {
                    plan.fills.push(mem::take(&mut fill));
                    continue;
                }
                fill.push(StagedPart { tensor: index, offset, slot: used..used + part });
                offset += part;
            }
            plan.bytes = plan.bytes.saturating_add(len as u64);
            plan.sources.push(source);
        }
        if !fill.is_empty() {
            plan.fills.push(fill);
        }
        Ok(plan)
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.bytes
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.fills.len()
    }

    pub(super) fn parts(&self, number: usize) -> &[StagedPart] {
        &self.fills[number]
    }

    pub(super) fn tensor(&self, part: &StagedPart) -> &TensorPlace<'t> {
        &self.sources[part.tensor].tensor
    }
}

impl StagedPlan<'_> {
    pub(super) fn fill(
        &self,
        number: usize,
        slot: &mut [u8],
        scratch: &mut ReadScratch,
    ) -> Result<()> {
        let parts = self.parts(number);
        let needed = parts.last().map_or(0, |part| part.slot.end);
        if slot.len() < needed {
            let found = slot.len();
            let short = format!("a slot has {found} bytes, expected at least {needed}");
            return Err(ErrorKind::Io(std::io::Error::other(short)).into());
        }
        let mut places = places(parts, slot).into_iter().peekable();
        while let Some((part, place)) = places.next() {
            let source = &self.sources[part.tensor];
            if !source.is_plain() {
                let read = source.read_converted(part, place, self.options, scratch);
                read.map_err(|error| source.tensor.locate(error))?;
                continue;
            }
            // Neighbours in the file are read in one call: the time of a small read is mostly the
            // call itself.
            let mut together = vec![(part, place)];
            let mut last = part;
            while let Some((next, place)) = places.next_if(|(next, _)| self.follows(last, next)) {
                together.push((next, place));
                last = next;
            }
            self.read_plain(together)?;
        }
        Ok(())
    }

    /// Returns `true` if both are read unchanged, one after the other in a file.
    fn follows(&self, part: &StagedPart, next: &StagedPart) -> bool {
        let source = &self.sources[part.tensor];
        let following = &self.sources[next.tensor];
        std::ptr::addr_eq(source.tensor.source, following.tensor.source)
            && following.is_plain()
            && source.file_offset(part) + part.slot.len() as u64 == following.file_offset(next)
    }

    /// Reads unconverted parts that are neighbours in a file.
    fn read_plain(&self, mut parts: Vec<(&StagedPart, &mut [u8])>) -> Result<()> {
        let Some((first, _)) = parts.first() else { return Ok(()) };
        let reader = self.tensor(first).source;
        let ranges = parts.iter_mut().map(|(part, place)| ReadRange {
            offset: self.sources[part.tensor].file_offset(part),
            bytes: place,
        });
        if reader.read_ranges_at(&mut ranges.collect::<Vec<_>>()).is_err() {
            // The joint read failed. Read the parts one by one, so that the error names the right
            // tensor.
            for (part, place) in &mut parts {
                let source = &self.sources[part.tensor];
                let read = reader.read_exact_at(place, source.file_offset(part));
                read.map_err(|error| source.tensor.locate(ErrorKind::Io(error).into()))?;
            }
        }
        for (part, place) in &mut parts {
            swap_on_big_endian(self.tensor(part).dtype(), place);
        }
        Ok(())
    }
}

fn places<'p, 's>(
    parts: &'p [StagedPart],
    mut slot: &'s mut [u8],
) -> Vec<(&'p StagedPart, &'s mut [u8])> {
    let mut cut = 0;
    let place = |part: &'p StagedPart| {
        let (_, rest) = mem::take(&mut slot).split_at_mut(part.slot.start - cut);
        let (place, rest) = rest.split_at_mut(part.slot.len());
        (cut, slot) = (part.slot.end, rest);
        (part, place)
    };
    parts.iter().map(place).collect()
}

impl<'t> Source<'t> {
    /// Also returns the bytes that the tensor then has.
    fn new(wanted: &'t TensorRead<'t>, options: &LoadOptions) -> Result<(Self, usize)> {
        let tensor = wanted.tensor;
        let loaded = wanted.loaded;
        let conversion = wanted.conversion(options)?;
        let len = shape::memory_len(loaded.dtype(), &loaded.shape(tensor.info.shape()))?;
        let numbers: usize = loaded.shape(&[]).iter().product();
        let bits = loaded.dtype().bits() as usize * numbers;
        Ok((Self { tensor, loaded, conversion, bits }, len))
    }

    /// Returns `true` if bytes of the file come into the slot unchanged. Bytes of BOOL are checked.
    fn is_plain(&self) -> bool {
        let file = self.tensor.dtype();
        self.conversion.is_none() && self.loaded.is_finished_by_reading() && file != Dtype::BOOL
    }

    /// Returns positions in the tensor, not in the part.
    fn elements(&self, part: &StagedPart) -> Range<usize> {
        let start = elements_of(part.offset, self.bits);
        start..start + elements_of(part.slot.len(), self.bits)
    }

    fn file_offset(&self, part: &StagedPart) -> u64 {
        let bits = self.tensor.dtype().bits() as usize;
        let before = bytes_of(self.elements(part).start, bits);
        self.tensor.offset + before as u64
    }
}

impl Source<'_> {
    fn read_converted(
        &self,
        part: &StagedPart,
        place: &mut [u8],
        options: &LoadOptions,
        scratch: &mut ReadScratch,
    ) -> Result<()> {
        let elements = self.elements(part);
        let offset = self.file_offset(part);
        let source = self.tensor.source;
        let first = elements.start as u64;
        let read = |conversion: &ReadConversion<'_>, out: &mut [u8], scratch: &mut ReadScratch| {
            scratch.read_converted(source, offset, conversion, first, out)
        };
        // Converted before the copy, so that a device has the values of the CPU. Wider elements
        // take more of the bus, but PCIe is several times as fast as a disk.
        if let Some(conversion) = &self.conversion
            && self.loaded.is_finished_by_reading()
        {
            return read(conversion, place, scratch);
        }
        // The conversion after reading needs a buffer of the dtype that is read.
        let dtype = self.conversion.map_or(self.tensor.dtype(), |conversion| conversion.to());
        let mut buf = TensorBuf::reserved(dtype, vec![elements.len()])?;
        match &self.conversion {
            Some(conversion) => read(conversion, buf.bytes_mut(), scratch)?,
            None => {
                source.read_exact_at(buf.bytes_mut(), offset).map_err(ErrorKind::Io)?;
                buf.finish_reading().map_err(|error| error.at_element(|index| first + index))?;
            }
        }
        // Slots are filled by several threads already.
        let buf = self.loaded.finish(buf, &options.convert, 1);
        place
            .copy_from_slice(buf.map_err(|error| error.at_element(|index| first + index))?.bytes());
        Ok(())
    }
}

/// Counts a multiple of [`GROUP`] elements for packed dtypes.
fn bytes_of(elements: usize, bits: usize) -> usize {
    elements / GROUP * bits + elements % GROUP * bits / 8
}

fn elements_of(bytes: usize, bits: usize) -> usize {
    bytes / bits * 8 + bytes % bits * 8 / bits
}
