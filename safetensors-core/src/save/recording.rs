//! Recording digests while saving: the header is planned with digests that are yet to be known, and
//! written again when they are.

use std::ops::Range;

use super::SaveOptions;
use super::spec::Spec;
use crate::error::Result;
use crate::hash::{Digest, Hasher, TensorDigests};
use crate::header::Metadata;
use crate::tensor::{TensorSource, write_exactly};

/// The metadata of a file of these tensors, with the room that their digests take.
pub(super) fn planned_metadata(tensors: &[Spec<'_>], options: &SaveOptions) -> Metadata {
    let mut metadata = options.metadata.clone();
    TensorDigests::unknown(tensors.iter().map(|tensor| tensor.name)).insert_into(&mut metadata);
    metadata
}

/// The options of a save whose metadata has these digests, one a tensor.
pub(super) fn recorded(
    tensors: &[Spec<'_>],
    options: &SaveOptions,
    digests: impl IntoIterator<Item = Digest>,
) -> SaveOptions {
    let record: TensorDigests = tensors.iter().map(|tensor| tensor.name).zip(digests).collect();
    let mut options = SaveOptions { digests: false, ..options.clone() };
    record.insert_into(&mut options.metadata);
    options
}

/// The digest of each tensor of a file that is in memory whole.
pub(super) fn of_file(file: &[u8], places: &[(usize, Range<u64>)]) -> Vec<Digest> {
    let mut digests = vec![Digest::from_bytes([0; 16]); places.len()];
    for (i, place) in places {
        // What is in memory has places that fit `usize`.
        digests[*i] = Digest::of(&file[place.start as usize..place.end as usize]);
    }
    digests
}

/// The digest of each source's bytes, which are asked for and dropped.
pub(super) fn of_sources<N: AsRef<str>, S: TensorSource>(
    tensors: &[(N, S)],
    places: &[(usize, Range<u64>)],
) -> Result<Vec<Digest>> {
    let mut digests = vec![Digest::from_bytes([0; 16]); places.len()];
    for (i, place) in places {
        let (name, tensor) = &tensors[*i];
        let mut hasher = Hasher::new();
        write_exactly(tensor, place.end - place.start, &mut |_, bytes| {
            hasher.update(bytes);
            Ok(())
        })
        .map_err(|error| error.in_tensor(name.as_ref()))?;
        digests[*i] = hasher.finish();
    }
    Ok(digests)
}
