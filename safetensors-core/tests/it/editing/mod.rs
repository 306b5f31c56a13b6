//! Editing files: their metadata, the names of their tensors, and which tensors they contain.

mod changes;
mod files;
mod model;
mod races;

use crate::support::*;

pub(crate) static DATA: [u8; 8192] = {
    let mut data = [0; 8192];
    let mut i = 0;
    while i < data.len() {
        data[i] = (i % 251) as u8;
        i += 1;
    }
    data
};

/// Returns a U8 tensor of `len` bytes with values that depend on `seed`.
pub(crate) fn bytes(len: &usize, seed: usize) -> TensorView<'_> {
    TensorView::new(Dtype::U8, std::slice::from_ref(len), &DATA[seed..seed + len]).unwrap()
}

/// A file of the tensors `a` (3 bytes), `b` (5) and `c` (none), in this order, with metadata.
pub(crate) fn file_of(options: SaveOptions) -> (TempDir, PathBuf) {
    let (directory, path) = place("model.safetensors");
    let tensors = [("a", bytes(&3, 0)), ("b", bytes(&5, 10)), ("c", bytes(&0, 0))];
    save(&path, tensors, &options.metadata([("k", "v")])).unwrap();
    (directory, path)
}

/// Makes the file with room in its header.
pub(crate) fn roomy_file() -> (TempDir, PathBuf) {
    file_of(SaveOptions::new().align(4096))
}

pub(crate) fn parse(path: &Path) -> SafeTensors<Vec<u8>> {
    SafeTensors::parse(fs::read(path).unwrap()).unwrap()
}

pub(crate) fn names(path: &Path) -> Vec<String> {
    parse(path).tensors().map(|tensor| tensor.name().to_owned()).collect()
}

/// Asserts that `dry_run` and `apply` refuse an edit with the same error, and that nothing has
/// changed.
#[track_caller]
pub(crate) fn refused(path: &Path, edit: impl Fn(Edit<'static>) -> Edit<'static>) -> Error {
    let before = fs::read(path).unwrap();
    let dry = edit(Edit::open(path).unwrap()).dry_run().unwrap_err();
    let error = edit(Edit::open(path).unwrap()).apply().unwrap_err();
    assert_eq!(dry.to_string(), error.to_string());
    assert_eq!(error.file(), path.to_str());
    assert_eq!(fs::read(path).unwrap(), before);
    assert_eq!(names_in(path.parent().unwrap()), ["model.safetensors"]);
    error
}
