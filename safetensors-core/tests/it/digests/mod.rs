//! Digests: known values, changed data, and invalid records.

mod progress;
mod recording;
mod values;
mod verifying;

use safetensors_core::digest::{
    self, Digest, DigestOptions, Hasher, KEY, TensorDigests, VerifiedFile,
};
use safetensors_core::edit::Edited;
use safetensors_core::save::{StreamWriter, write_to};

use crate::support::*;

/// Numbers of bytes of [`pattern`], and their XXH3-128 by python-xxhash 4.1.0. This is
/// `xxh3_128(..).hexdigest()`, as `xxhsum -H128` prints it. XXH3 changes its algorithm at these
/// lengths; others are one byte less than a piece, and several pieces.
const KNOWN: [(usize, &str); 14] = [
    (0, "99aa06d3014798d86001c324468d497f"),
    (1, "495b62073ef70ca44c5cca45d0f4811f"),
    (3, "46f66cb93538156515f7093b173d005c"),
    (8, "803c675a846cc6c256bb836ceb6d4baa"),
    (16, "da917c385cc874c00d463cb04ceffbaf"),
    (17, "d443578f2c4e2fb495c34448580e19c8"),
    (128, "22c34350373a38ae5b77925b2c683a12"),
    (129, "c4a7d8f7893f2090d6d9e73553568be1"),
    (240, "e29d70b8920fd24bc6ed4333f79384f8"),
    (241, "f91b3cb8ed0fa91a07525dbc14902c7f"),
    (1024, "f53a1b1e9f1efedfe2898655db7bc9ee"),
    (1025, "a906cca0f6e772a7134c652ba3d6fb9e"),
    (1048575, "474af7ec6efb22050c429e859f731088"),
    (3158073, "5763da81fcaadfa0ae193e841c381b16"),
];

/// The SHA-256 of the same, by Python's hashlib.
const SHA256: [&str; 14] = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879",
    "647674a296197442f518bcca323ec605dd8d098b2d4f22ee1fdcdd2bb753a189",
    "4fb900ca3f5832fcc475b79bf07217bf0edfe9d39ea10f5cf624246ff68b47de",
    "99475c74958fe43140aefb9e700b493dafe19a8efd02d63770a415aeb14a2a43",
    "ab40fc588ad269c3e66b174f38b90af2257c31f62af9df7b4b678761f6d17e9e",
    "43a42610c7b657d1ce21bf0255e86be7ea01aa9dddf0701f596e99a4c6f61001",
    "35b3c29046f207cfca0f9e23b9ed7f9fd19084699c413286eadbc80833f374b6",
    "ae35350e348015018df449ba88a0bb217aa15c463b368df1b1830dfa40f6b10f",
    "dfd2acfa4b2c7bf49c9ccb0184e4a3b613bdc3bc02d738828c1e5d5c2d6bb28c",
    "8dcdcf24d5ee9e222bebf46f1b93b5b923970230faccd3ce268adfd31e3ef19f",
    "73245373598f9102701995d6fd6d5f0eea2f28407bccd99ed541d7d89a035f5c",
    "14446dd49471dd263c478a8bd520ff2c4838ba97b15b4b53aaec61356f27b038",
    "cae1fc4fa88f9584ff5bbc1b0a59a0970515b10cb4517a979dacb35d2d2c1987",
];

/// The bytes of the digests in [`KNOWN`].
fn pattern(len: usize) -> Vec<u8> {
    repeated(len, 251, |i| ((i * 31 + 7) % 251) as u8)
}

fn u8_tensor(bytes: &[u8]) -> TensorBuf {
    TensorBuf::from_vec(vec![bytes.len()], bytes.to_vec()).unwrap()
}

/// The entry that records these digests, right or wrong.
fn record_of<'a>(digests: impl IntoIterator<Item = (&'a str, Digest)>) -> [(String, String); 1] {
    [(KEY.into(), digests.into_iter().collect::<TensorDigests>().to_string())]
}

/// Saves tensors, and sets entries of the metadata. A save keeps no record that is given to it.
fn save_with<N: Into<String>>(
    path: &Path,
    tensors: &[(&str, &[u8])],
    entries: impl IntoIterator<Item = (N, String)>,
) {
    let tensors = tensors.iter().map(|(name, bytes)| (*name, u8_tensor(bytes)));
    save(path, tensors, &SaveOptions::new()).unwrap();
    Edit::open(path).unwrap().durable(false).set_metadata(entries).apply().unwrap();
}

/// Saves tensors and records the right digests of some of them.
fn save_recorded(path: &Path, tensors: &[(&str, &[u8])], recorded: &[&str]) {
    let digests = tensors.iter().filter(|(name, _)| recorded.contains(name));
    save_with(
        path,
        tensors,
        record_of(digests.map(|(name, bytes)| (*name, Digest::compute(bytes)))),
    );
}

/// A directory with two shards and their index. Every tensor is recorded in its shard.
fn sharded() -> (TempDir, [PathBuf; 2]) {
    let directory = tempdir().unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let paths = shards.map(|name| directory.path().join(name));
    save_recorded(&paths[0], &[("a", &pattern(1000)), ("b", &[])], &["a", "b"]);
    save_recorded(&paths[1], &[("c", &pattern(17)), ("d", &pattern(2_000_000))], &["c", "d"]);
    let index = format!(
        r#"{{"metadata":{{}},"weight_map":{{"a":"{0}","b":"{0}","c":"{1}","d":"{1}"}}}}"#,
        shards[0], shards[1]
    );
    write(directory.path(), "model.safetensors.index.json", index);
    (directory, paths)
}

/// The offset in the file of a byte of a tensor.
fn offset_of(path: &Path, tensor: &str, byte: u64) -> usize {
    (Checkpoint::open(path).unwrap().tensor(tensor).unwrap().file_offset() + byte) as usize
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Records digests in a file.
fn record(path: &Path, options: &DigestOptions) -> Result<Edited> {
    Edit::open(path)?.record_digests(options)?.apply()
}

fn verify(path: &Path) -> Result<()> {
    digest::verify(&Checkpoint::open(path)?, &DigestOptions::new()).map(drop)
}

/// Verifies a file with this record in `__metadata__`. Its only tensor is `w`, which is empty.
fn verify_record(record: &str) -> Result<()> {
    let (_directory, path) = place("model.safetensors");
    save_with(&path, &[("w", b"")], [(KEY, record.to_owned())]);
    verify(&path)
}
