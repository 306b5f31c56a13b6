//! [`Layout`]: where everything lies in the file, decided before a byte is written.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Order, SaveOptions, TensorSource};
use crate::header::{Entry, METADATA_KEY, encode};
use crate::names::NameTable;
use crate::{Error, ErrorKind, Limits, Result, shape};

/// The plan of a file: the bytes before the data, and each tensor's place.
pub(super) struct Layout {
    /// Header length, header and padding.
    pub(super) prefix: Vec<u8>,
    /// The tensors in file order: which of the input, and where from the start of the file its bytes go.
    pub(super) places: Vec<(usize, Range<u64>)>,
}

impl Layout {
    /// Plans a file of these tensors, and refuses what could not be read back.
    pub(super) fn plan<N: AsRef<str>, S: TensorSource>(tensors: &[(N, S)], options: &SaveOptions) -> Result<Self> {
        if !options.align.is_power_of_two() || !(8..=4096).contains(&options.align) {
            return Err(ErrorKind::BadAlignment { found: options.align }.into());
        }
        check_names(tensors)?;
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        if options.order == Order::Alignment {
            order.sort_by(|&a, &b| {
                let key = |i: usize| (core::cmp::Reverse(tensors[i].1.dtype().alignment()), tensors[i].0.as_ref());
                key(a).cmp(&key(b))
            });
        }
        let mut places = Vec::with_capacity(tensors.len());
        let mut end = 0_u64;
        for i in order {
            let (name, tensor) = &tensors[i];
            let begin = end;
            let overflow = || ErrorKind::ShapeOverflow { shape: tensor.shape().into() };
            end = shape::byte_len(tensor.dtype(), tensor.shape())
                .and_then(|len| begin.checked_add(len).ok_or_else(overflow))
                .map_err(|kind| Error::from(kind).in_tensor(name.as_ref()))?;
            places.push((i, begin..end));
        }
        let entries = places.iter().map(|(i, data_offsets)| Entry {
            name: tensors[*i].0.as_ref(),
            dtype: tensors[*i].1.dtype(),
            shape: tensors[*i].1.shape(),
            data_offsets: data_offsets.clone(),
        });
        let prefix = encode(&options.metadata, entries, options.align);
        let (found, limit) = (prefix.len() as u64 - 8, Limits::default().header_bytes);
        if found > limit {
            return Err(ErrorKind::HeaderTooLarge { limit, found }.into());
        }
        let start = prefix.len() as u64;
        for (_, range) in &mut places {
            *range = start + range.start..start + range.end;
        }
        Ok(Self { prefix, places })
    }

    /// The length of the file.
    pub(super) fn file_len(&self) -> u64 {
        self.places.last().map_or(self.prefix.len() as u64, |(_, range)| range.end)
    }
}

fn check_names<N: AsRef<str>, S>(tensors: &[(N, S)]) -> Result<()> {
    let name_at = |i: usize| tensors[i].0.as_ref();
    let mut table = NameTable::default();
    table.reserve(tensors.len(), name_at);
    for i in 0..tensors.len() {
        let name = name_at(i);
        if name == METADATA_KEY {
            return Err(Error::from(ErrorKind::ReservedName).in_tensor(name));
        }
        if !table.insert(name, i, name_at) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
    }
    Ok(())
}
