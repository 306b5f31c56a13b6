//! Records digests in a save, first as placeholders of the same length.

use std::ops::Range;

use super::SaveOptions;
use super::spec::Spec;
use crate::file::hash::{Digest, Hasher, TensorDigests};
use crate::format::error::Result;
use crate::format::header::Metadata;
use crate::format::tensor::{Named, write_exactly};

pub(super) fn expect_digests(tensors: &[Spec<'_>], metadata: &mut Metadata) {
    TensorDigests::unknown(tensors.iter().map(|tensor| tensor.name)).insert_into(metadata);
}

pub(super) fn recorded(
    tensors: &[Spec<'_>],
    options: &SaveOptions,
    digests: impl IntoIterator<Item = Digest>,
) -> SaveOptions {
    let record: TensorDigests = tensors.iter().map(|tensor| tensor.name).zip(digests).collect();
    let mut options = SaveOptions { digests: false, ..options.clone() };
    record.insert_into(&mut options.as_is);
    options
}

/// Hashes a file in memory.
pub(super) fn of_file(file: &[u8], places: &[(usize, Range<u64>)]) -> Vec<Digest> {
    let mut digests = vec![Digest::from([0_u8; 16]); places.len()];
    for (i, place) in places {
        // The file is in memory, so its offsets fit `usize`.
        digests[*i] = Digest::compute(&file[place.start as usize..place.end as usize]);
    }
    digests
}

/// Hashes bytes that the sources produce for this alone.
pub(super) fn of_sources(
    tensors: &[Named<'_>],
    places: &[(usize, Range<u64>)],
) -> Result<Vec<Digest>> {
    let mut digests = vec![Digest::from([0_u8; 16]); places.len()];
    for (i, place) in places {
        let (name, tensor) = tensors[*i];
        let mut hasher = Hasher::default();
        write_exactly(tensor, place.end - place.start, &mut |bytes| {
            hasher.update(bytes);
            Ok(())
        })
        .map_err(|error| error.in_tensor(name))?;
        digests[*i] = hasher.finish();
    }
    Ok(digests)
}
