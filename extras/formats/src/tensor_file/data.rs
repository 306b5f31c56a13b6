//! [`Data`]: the source of a tensor's bytes.

use std::io;

use safetensors_core::ReadAt;
use safetensors_core::checkpoint::Strided;

use super::blocks::Blocks;
use super::undo::Undo;
use super::{Container, Placement, Scratch};
use crate::error::{ErrorKind, Result};
use crate::zipped::Place;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Unchanged.
    Plain(Place),
    /// Elements in another order, or big-endian numbers of `swapped` bytes.
    Moved { place: Place, strided: Option<Strided>, swapped: Option<usize> },
    /// Quantised.
    Blocks { place: Place, blocks: Blocks, scales: Option<Scales> },
    /// Stored in another form.
    Undone { data: Box<Self>, undo: Undo },
    /// For this reason.
    Refused(Reason),
}

/// All are F32.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scales {
    pub(crate) place: Place,
    /// The number of elements with one scale.
    pub(crate) each: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The type of elements with this name.
    NoDtype(&'static str),
    UnknownObject(Box<str>),
    NotRead(Box<str>),
    Quantised(&'static str),
    NoDequantizer(Box<str>),
    /// Another tensor of the module has an unknown effect.
    Companion(Box<str>),
    NoName(&'static str),
}

impl From<Reason> for ErrorKind {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::NoDtype(name) => Self::NoDtype { name: name.into() },
            Reason::UnknownObject(class) => Self::UnknownObject { class: class.into() },
            Reason::NotRead(problem) => Self::NotRead { problem: problem.into() },
            Reason::Quantised(kind) => Self::Quantised { kind },
            Reason::NoDequantizer(kind) => Self::NoDequantizer { kind: kind.into() },
            Reason::Companion(problem) => Self::BadCompanion { problem: problem.into() },
            Reason::NoName(architecture) => Self::NoGgufName { architecture },
        }
    }
}

impl Data {
    /// The storage begins at `place`. Numbers of `swapped` bytes are big-endian.
    pub(crate) fn placed(place: Place, placement: Placement, swapped: Option<usize>) -> Self {
        match placement {
            Placement::Contiguous(first) if swapped.is_none() => Self::Plain(place.after(first)),
            Placement::Contiguous(first) => {
                Self::Moved { place: place.after(first), strided: None, swapped }
            }
            Placement::Strided(strided) => Self::Moved { place, strided: Some(strided), swapped },
        }
    }

    pub(crate) fn inside(self, start: u64) -> Option<Self> {
        let at = |place| match place {
            Place::At(offset) => offset.checked_add(start).map(Place::At),
            Place::Held(bytes) => Some(Place::Held(bytes)),
            Place::Unpacked { .. } => None,
        };
        Some(match self {
            Self::Plain(place) => Self::Plain(at(place)?),
            Self::Moved { place, strided, swapped } => {
                Self::Moved { place: at(place)?, strided, swapped }
            }
            other => other,
        })
    }

    pub(crate) fn read(&self, container: &Container, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::Plain(place) => Ok(container.opened(place)?.read(buf, offset)?),
            Self::Moved { place, strided, swapped } => {
                let storage = container.opened(place)?;
                let read = |buf: &mut [u8], first| match strided {
                    None => storage.read(buf, first),
                    Some(strided) => strided.read(&|buf, at| storage.read(buf, at), first, buf),
                };
                let Some(width) = *swapped else { return Ok(read(buf, offset)?) };
                in_units(buf, offset, width, |first, part| {
                    read(part, first * width as u64)?;
                    swap(part, width);
                    Ok(())
                })
            }
            Self::Blocks { place, blocks, scales } => {
                let storage = container.opened(place)?;
                in_units(buf, offset, blocks.unit(), |first, part| {
                    blocks.read(&|buf, at| storage.read(buf, at), first, part)?;
                    let Some(scales) = scales else { return Ok(()) };
                    scales.multiply(container, part, first * blocks.len as u64)
                })
            }
            Self::Undone { data, undo } => in_units(buf, offset, undo.unit(), |first, part| {
                data.read(container, part, first * undo.unit() as u64)?;
                undo.apply(part);
                Ok(())
            }),
            Self::Refused(reason) => Err(ErrorKind::from(reason.clone()).into()),
        }
    }
}

impl Scales {
    fn multiply(&self, container: &Container, numbers: &mut [u8], mut first: u64) -> Result<()> {
        let each = self.each;
        let mut rest = numbers.as_chunks_mut::<4>().0;
        let start = first / each;
        let count = (first + rest.len() as u64).div_ceil(each) - start;
        let mut scales = vec![0; count as usize * size_of::<f32>()];
        container.opened(&self.place)?.read(&mut scales, start * size_of::<f32>() as u64)?;
        for scale in scales.as_chunks().0 {
            let len = (each - first % each).min(rest.len() as u64);
            let (part, others) = rest.split_at_mut(len as usize);
            for number in part {
                *number = (f32::from_le_bytes(*number) * f32::from_le_bytes(*scale)).to_le_bytes();
            }
            (rest, first) = (others, first + len);
        }
        Ok(())
    }
}

/// Reverses the bytes of each number of 2, 4 or 8 bytes.
pub(crate) fn swap(numbers: &mut [u8], width: usize) {
    match width {
        2 => swap_all::<2>(numbers),
        4 => swap_all::<4>(numbers),
        _ => swap_all::<8>(numbers),
    }
}

fn swap_all<const WIDTH: usize>(numbers: &mut [u8]) {
    numbers.as_chunks_mut::<WIDTH>().0.iter_mut().for_each(|number| number.reverse());
}

enum OpenedData<'a> {
    File(&'a dyn ReadAt, u64),
    Unpacked(&'a Scratch, u64),
    Held(&'a [u8]),
}

impl Container {
    fn opened<'a>(&'a self, place: &'a Place) -> Result<OpenedData<'a>> {
        Ok(match (place, self) {
            (Place::At(start), Self::Zip(zipped, _)) => {
                OpenedData::File(&*zipped.input.source, *start)
            }
            (Place::At(start), Self::File(input)) => OpenedData::File(&*input.source, *start),
            (Place::Unpacked { member, skipped }, Self::Zip(zipped, scratch)) => {
                OpenedData::Unpacked(scratch, scratch.unpacked(zipped, *member)? + skipped)
            }
            // Only archives have members.
            (Place::Unpacked { .. }, Self::File(_)) => {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            }
            (Place::Held(bytes), _) => OpenedData::Held(bytes),
        })
    }
}

impl OpenedData<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(source, start) => source.read_exact_at(buf, start + offset),
            Self::Unpacked(scratch, start) => scratch.read(buf, start + offset),
            Self::Held(bytes) => bytes.read_exact_at(buf, offset),
        }
    }
}

/// `fill` makes complete units from the given one on. Partial units at the ends are made separately
/// and copied.
fn in_units(
    buf: &mut [u8],
    offset: u64,
    unit: usize,
    mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut first = offset / unit as u64;
    let skipped = (offset % unit as u64) as usize;
    let mut rest = buf;
    let mut part_of = |number: u64, skipped: usize, part: &mut [u8]| -> Result<()> {
        let mut whole = vec![0; unit];
        fill(number, &mut whole)?;
        part.copy_from_slice(&whole[skipped..skipped + part.len()]);
        Ok(())
    };
    if skipped > 0 && !rest.is_empty() {
        let (head, more) = rest.split_at_mut(rest.len().min(unit - skipped));
        part_of(first, skipped, head)?;
        (rest, first) = (more, first + 1);
    }
    let (middle, tail) = rest.split_at_mut(rest.len() / unit * unit);
    if !tail.is_empty() {
        part_of(first + (middle.len() / unit) as u64, 0, tail)?;
    }
    if middle.is_empty() { Ok(()) } else { fill(first, middle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_units_is_computed() {
        let all: Vec<u8> = (0..60).collect();
        for unit in [1, 3, 4, 7, 60] {
            let units = 60 / unit;
            let len = units * unit;
            for start in 0..len {
                for end in start..=len {
                    let mut buf = vec![0; end - start];
                    in_units(&mut buf, start as u64, unit, |first, part| {
                        assert!(part.len() % unit == 0 && !part.is_empty());
                        let at = first as usize * unit;
                        part.copy_from_slice(&all[at..at + part.len()]);
                        Ok(())
                    })
                    .unwrap();
                    assert_eq!(buf, all[start..end], "{unit} {start} {end}");
                }
            }
        }
    }
}
