//! Helpers of several tests.

use safetensors_core::{Error, ErrorKind};
pub(crate) use safetensors_testing::files::place;

/// Returns the error of ndarray, or of this adapter, inside an [`ErrorKind::Framework`].
pub(crate) fn said<T: std::error::Error + 'static>(error: &Error) -> &T {
    match error.kind() {
        ErrorKind::Framework { framework: "ndarray", source } => source.downcast_ref().unwrap(),
        kind => panic!("{kind:?}"),
    }
}

/// Asserts that an error ends with these words.
#[track_caller]
pub(crate) fn assert_says(error: &Error, words: &str) {
    let message = error.to_string();
    assert!(message.ends_with(words), "{message}");
}

/// Bytes that begin one byte after an aligned address, and their number.
pub(crate) fn shifted(bytes: &[u8]) -> (Vec<u64>, usize) {
    let mut words = vec![0_u64; bytes.len() / 8 + 2];
    bytemuck::cast_slice_mut(&mut words)[1..1 + bytes.len()].copy_from_slice(bytes);
    (words, bytes.len())
}
