//! [`Layout`]: the place of everything, decided before a byte is written.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

use super::spec::Spec;
use super::{Order, SaveOptions};
use crate::file::hash::{Change, forget, has_records};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{
    HeaderEntry, LENGTH_BYTES, Limits, METADATA_KEY, Metadata, NameTable, encode,
};
use crate::format::tensor::shape;

// No system has longer files, and with a header before the data its end still fits 64 bits.
const MAX_DATA: u64 = i64::MAX as u64;

pub(crate) struct Layout {
    pub(crate) prefix: Vec<u8>,
    /// In file order: the position in the input, and the bytes in the file.
    pub(crate) places: Vec<(usize, Range<u64>)>,
    /// Positions in the input.
    pub(crate) names: NameTable,
}

impl Layout {
    /// Fails if the file could not be read back.
    pub(crate) fn plan(tensors: &[Spec<'_>], options: &SaveOptions) -> Result<Self> {
        Self::plan_named(tensors, options, check_names(tensors)?)
    }

    /// The names must be valid and different.
    pub(crate) fn plan_named(
        tensors: &[Spec<'_>],
        options: &SaveOptions,
        names: NameTable,
    ) -> Result<Self> {
        options.check_align()?;
        let limits = Limits::default();
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        if options.order == Order::Alignment {
            order.sort_by_key(|&i| (Reverse(tensors[i].dtype), tensors[i].name));
        }
        let mut places = Vec::with_capacity(tensors.len());
        let mut end = 0_u64;
        for i in order {
            let Spec { name, dtype, shape } = tensors[i];
            let in_tensor = |kind| Error::from(kind).in_tensor(name);
            limits.check_ndim(shape.len()).map_err(in_tensor)?;
            let begin = end;
            let overflow = || ErrorKind::ShapeOverflow { shape: shape.into() };
            end = shape::byte_len(dtype, shape)
                .and_then(|len| {
                    begin.checked_add(len).filter(|end| *end <= MAX_DATA).ok_or_else(overflow)
                })
                .map_err(in_tensor)?;
            places.push((i, begin..end));
        }
        let entries = places.iter().map(|(i, data_offsets)| {
            let Spec { name, dtype, shape } = tensors[*i];
            HeaderEntry { name, dtype, shape, data_offsets: data_offsets.clone() }
        });
        let metadata = metadata(tensors, options);
        if metadata.len() > limits.metadata_entries {
            let limit = limits.metadata_entries;
            return Err(ErrorKind::TooManyMetadataEntries { limit }.into());
        }
        let prefix = encode(&metadata, entries, options.align);
        let found = prefix.len() as u64 - 8;
        let limit = limits.header_bytes;
        if found > limit {
            return Err(ErrorKind::HeaderTooLarge { limit, found }.into());
        }
        let start = prefix.len() as u64;
        for (_, range) in &mut places {
            *range = start + range.start..start + range.end;
        }
        Ok(Self { prefix, places, names })
    }

    /// Changes the padding.
    pub(crate) fn move_data_to(&mut self, start: usize) {
        let old = self.prefix.len() as u64;
        self.prefix.resize(start, b' ');
        let length = start as u64 - LENGTH_BYTES as u64;
        self.prefix[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        let moved = |at: u64| at - old + start as u64;
        for (_, range) in &mut self.places {
            *range = moved(range.start)..moved(range.end);
        }
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.places.last().map_or(self.prefix.len() as u64, |(_, range)| range.end)
    }
}

/// Drops another file's records, and adds placeholders for digests.
fn metadata<'a>(tensors: &[Spec<'_>], options: &'a SaveOptions) -> Cow<'a, Metadata> {
    let mut metadata = Cow::Borrowed(&options.metadata);
    if has_records(&metadata) {
        forget(metadata.to_mut(), Change::File);
    }
    if !options.as_is.is_empty() {
        metadata.to_mut().extend(options.as_is.clone());
    }
    #[cfg(feature = "std")]
    if options.digests {
        super::recording::expect_digests(tensors, metadata.to_mut());
    }
    let _ = tensors;
    metadata
}

fn check_names(tensors: &[Spec<'_>]) -> Result<NameTable> {
    let name_at = |i: usize| tensors[i].name;
    let mut table = NameTable::default();
    table.reserve(tensors.len(), name_at);
    for (i, Spec { name, .. }) in tensors.iter().enumerate() {
        if *name == METADATA_KEY {
            return Err(Error::from(ErrorKind::ReservedName).in_tensor(name));
        }
        if !table.insert(name, i, name_at) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
    }
    Ok(table)
}
