//! Files and trainers' directories of other formats: any bytes, read as a checkpoint.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, ReadAt};
use safetensors_formats::{Error, Limits, Options, TensorFile, open_files};

/// How an input begins that is a directory. Each file follows as the position of its name in
/// [`NAMES`], its length in three bytes, little-endian, and its bytes.
const DIRECTORY: &[u8] = b"directory\0";

/// The names that files of a directory can have.
const NAMES: [&str; 20] = [
    ".metadata",
    "__0.metadata",
    "__1.metadata",
    "__0_0.distcp",
    "__1_0.distcp",
    "metadata.json",
    "common.pt",
    "model_world_size_4_rank_0.pt",
    "model_world_size_4_rank_1.pt",
    "model_world_size_4_rank_2.pt",
    "model_world_size_4_rank_3.pt",
    "latest",
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt",
    "zero_pp_rank_1_mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "shard-00001-model-00001-of-00002.safetensors",
    "shard-00002-model-00002-of-00002.safetensors",
    "pytorch_model.bin",
];

/// The most bytes of a tensor that are read.
const MOST: u64 = 1 << 20;

/// Checks one input: the whole of it is a file, or a directory.
pub fn run(input: &[u8]) {
    let mut limits = Limits::default();
    limits.directory_bytes = 1 << 20;
    let options = Options::new().limits(limits).dequantize(true).optimizer_state(true);
    parts(input, &options);
    let checked = match input.strip_prefix(DIRECTORY) {
        Some(files) => open_files(directory(files), "", &options)
            .map(|files| files.into_iter().for_each(|(_, file)| check(file))),
        None => TensorFile::from_source(input.to_vec(), "a file", &options).map(check),
    };
    if let Err(error) = checked {
        can_be_shown(&error);
    }
}

/// Returns the files of a directory.
fn directory(mut input: &[u8]) -> MemoryStore {
    let mut store = MemoryStore::default();
    while let [name, a, b, c, rest @ ..] = input {
        let len = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        let (bytes, more) = rest.split_at(len.min(rest.len()));
        store.insert(NAMES[usize::from(*name) % NAMES.len()], bytes.to_vec());
        input = more;
    }
    store
}

/// Reads all tensors of the file, whole and in parts.
fn check(file: TensorFile) {
    let len = file.byte_len();
    // Core's own limits, such as the number of dimensions, may refuse it.
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

/// Opens the input as both parts of a split file; it can be at most one of them.
fn parts(input: &[u8], options: &Options) {
    let names = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
    let store = MemoryStore::from_iter(names.map(|name| (name, input.to_vec())));
    match open_files(store, names[0], options) {
        Ok(files) => assert_eq!(files.len(), 1),
        Err(error) => can_be_shown(&error),
    }
}

/// An error can be shown in few words.
fn can_be_shown(error: &Error) {
    let text = error.to_string();
    assert!(text.len() <= 1500, "{} bytes: {text:.200}", text.len());
    assert!(format!("{error:#?}").len() <= (4 << 10) + 3);
}
