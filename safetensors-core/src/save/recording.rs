//! Recording digests while saving: the header is planned with digests that are yet to be known, and
//! written again when they are.

use super::SaveOptions;
use super::TensorSource;
use super::layout::Layout;
use super::sequential::write_exactly;
use super::spec::Spec;
use crate::digest::{Digest, Hasher, TensorDigests};
use crate::{Metadata, Result};

/// The metadata of a file of these tensors, with the room that their digests take.
pub(super) fn planned_metadata(tensors: &[Spec<'_>], options: &SaveOptions) -> Metadata {
    let mut metadata = options.metadata.clone();
    TensorDigests::unknown(tensors.iter().map(|tensor| tensor.name)).write(&mut metadata);
    metadata
}

/// The bytes before the data with these digests, one a tensor. They are as many as those that were
/// planned without them.
pub(super) fn prefix(
    tensors: &[Spec<'_>],
    options: &SaveOptions,
    digests: impl IntoIterator<Item = Digest>,
) -> Result<Vec<u8>> {
    let record: TensorDigests = tensors.iter().map(|tensor| tensor.name).zip(digests).collect();
    let mut options = SaveOptions { digests: false, ..options.clone() };
    record.write(&mut options.metadata);
    Ok(Layout::plan(tensors, &options)?.prefix)
}

/// The digest of each tensor of a file that is in memory whole.
pub(super) fn of_file(file: &[u8], layout: &Layout) -> Vec<Digest> {
    let mut digests = vec![Digest::from_bytes([0; 16]); layout.places.len()];
    for (i, place) in &layout.places {
        // What is in memory has places that fit `usize`.
        digests[*i] = Digest::of(&file[place.start as usize..place.end as usize]);
    }
    digests
}

/// The digest of each source's bytes, which are asked for and dropped.
pub(super) fn of_sources<N: AsRef<str>, S: TensorSource>(
    tensors: &[(N, S)],
    layout: &Layout,
) -> Result<Vec<Digest>> {
    let mut digests = vec![Digest::from_bytes([0; 16]); layout.places.len()];
    for (i, place) in &layout.places {
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
