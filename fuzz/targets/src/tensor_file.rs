//! Files of PyTorch, GGUF and NumPy: any bytes as a file, read as a checkpoint.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, ReadAt};
use safetensors_formats::{Error, Limits, Options, TensorFile, open_files};

/// The most bytes of a tensor that are read.
const MOST: u64 = 1 << 20;

/// Checks one input: the whole of it is a file.
pub fn run(input: &[u8]) {
    let mut limits = Limits::default();
    limits.objects = 20_000;
    limits.directory_bytes = 1 << 20;
    let options = Options::new().limits(limits).dequantize(true);
    parts(input, &options);
    let file = match TensorFile::from_source(input.to_vec(), "a file", &options) {
        Ok(file) => file,
        Err(error) => return can_be_shown(&error),
    };
    let len = file.byte_len();
    // Core's own limits, such as that of dimensions, may refuse it.
    let Ok(checkpoint) = Checkpoint::from_source(file, "a file") else { return };
    for tensor in checkpoint.tensors().filter(|tensor| tensor.byte_len() <= MOST) {
        let Ok(whole) = tensor.read() else { continue };
        assert_eq!(whole.bytes().len() as u64, tensor.byte_len());
        // Any part has the same bytes.
        let file = checkpoint.files()[0].safetensors().source();
        let (start, third) = (tensor.file_offset(), whole.bytes().len() / 3);
        assert!(start + tensor.byte_len() <= len);
        let mut part = vec![0; third];
        file.read_exact_at(&mut part, start + third as u64).expect("the whole was read");
        assert!(part == whole.bytes()[third..third * 2]);
    }
    let _ = checkpoint.files()[0].safetensors().source().verify_checksums();
    let training = PyTorchTraining::new().parameters(["a", "b", "c", "d"]);
    match training.state(&checkpoint) {
        Ok(state) => assert!(state.parameters().count() > 0),
        Err(error) => can_be_shown(&error),
    }
}

/// Opens the input as both parts of a split file, one of which it cannot be.
fn parts(input: &[u8], options: &Options) {
    let names = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
    let store = MemoryStore::from_iter(names.map(|name| (name, input.to_vec())));
    match open_files(&store, names[0], options) {
        Ok(files) => assert_eq!(files.len(), 1),
        Err(error) => can_be_shown(&error),
    }
}

/// An error can be shown in few words.
fn can_be_shown(error: &Error) {
    let text = error.to_string();
    assert!(text.len() <= 1500, "{} bytes: {text:.200}", text.len());
    assert!(format!("{error:?}").len() <= 4 << 10);
}
