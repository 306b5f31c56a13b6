//! Records of a file and its changes: after each operation a record is right, or it is gone, or the
//! operation was refused ([`operations`], [`manifests`]). The notes about them ([`notes`]).

mod manifests;
mod notes;
mod operations;

use safetensors_core::digest::{self, Digest, DigestOptions, KEY, Note};
use safetensors_core::edit::Edited;
use safetensors_core::save::Order;
use safetensors_testing::lora::Merge;

use crate::support::*;

const SHA256: &str = "modelspec.hash_sha256";
const ATTEMPT: &str = "safetensors_bridge.attempt";
const NAME: &str = "model.safetensors";
const VALUES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn bytes(shape: &'static [usize; 1]) -> TensorView<'static> {
    TensorView::from_slice(shape, &VALUES[..shape[0]]).unwrap()
}

/// A file with three tensors, and room in its header, that has every record.
fn create(directory: &Path) -> PathBuf {
    let path = directory.join(NAME);
    let tensors = [("a", bytes(&[5])), ("b", bytes(&[8])), ("c", bytes(&[0]))];
    let options = SaveOptions::new().order(Order::Given).align(1024).metadata([("k", "v")]);
    save(&path, tensors, &options).unwrap();
    record_everything(&path);
    path
}

fn record_everything(path: &Path) {
    let edit = Edit::open(path).unwrap().set_metadata([(ATTEMPT, "step-1")]);
    edit.record_digests(&DigestOptions::new().sha256(true)).unwrap().apply().unwrap();
}

/// The number of tensors of the first file with a digest, and whether it has a SHA-256 and the name
/// of an attempt. Everything that is recorded has been compared with the data, and a change of each
/// byte of the data is found if it should be.
fn compared(path: &Path) -> (usize, bool, bool) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let checkpoint = match checkpoint.into_parts() {
        Ok(parts) => parts.into_iter().next().unwrap(),
        Err(_) => Checkpoint::open(path).unwrap().into_stored().unwrap(),
    };
    let files = digest::verify(&checkpoint, &DigestOptions::new()).unwrap();
    let (file, checked) = (files[0].file.to_owned(), files[0].checked.len());
    let (sha256, in_file) = (files[0].sha256.is_some(), checkpoint.files()[0].safetensors());
    let ends = in_file.tensors().filter(|it| files[0].checked.contains(&it.name()));
    let ends: Vec<_> = ends.map(|it| (it.file_offset() + it.byte_len()) as usize).collect();
    let sound = fs::read(&file).unwrap();
    for end in ends.into_iter().chain(sha256.then_some(sound.len())) {
        let mut changed = sound.clone();
        changed[end - 1] ^= 1;
        fs::write(&file, changed).unwrap();
        let changed = Checkpoint::open(&file).unwrap();
        digest::verify(&changed, &DigestOptions::new()).unwrap_err();
    }
    fs::write(&file, sound).unwrap();
    (checked, sha256, checkpoint.metadata().contains_key(ATTEMPT))
}

/// The tensors of the file with its metadata.
fn taken(path: &Path) -> Result<([(String, TensorBuf); 2], SaveOptions)> {
    let file = Checkpoint::open(path)?;
    let tensors = ["a", "b"].map(|name| (name.into(), file.tensor(name).unwrap().read().unwrap()));
    Ok((tensors, SaveOptions::new().metadata(file.metadata().clone())))
}

fn digests(sha256: bool) -> DigestOptions {
    DigestOptions::new().sha256(sha256)
}

/// Merging an adapter computes other values.
#[test]
fn a_merged_checkpoint_has_no_records_of_its_base() {
    let fixture = Merge::named("exact-rank-1");
    let (directory, path) = place(NAME);
    fs::copy(fixture.model(), &path).unwrap();
    record_everything(&path);
    let merged = Checkpoint::open(&path).unwrap().merged(fixture.adapters()).unwrap();
    let to = directory.path().join("merged.safetensors");
    Rewrite::from_checkpoint(&merged).save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(compared(&to), (0, false, false));
}

/// Writes a manifest that describes a file as burn's epochs do.
fn describe(path: &Path, directory: &Path) {
    let file = fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let digest = Digest::compute(&file[..header]);
    let json = format!(r#"{{"files": {{"{NAME}": {{"header_xxh3_128": "{digest}"}}}}}}"#);
    write(directory, "manifest.json", json);
}

fn assert_refused(name: &str, error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::InManifest { .. }), "{name}: {error}");
    assert!(error.to_string().contains("manifest.json"), "{name}: {error}");
    assert!(error.file().is_some(), "{name}: {error}");
}

#[test]
fn metadata_of_another_file_is_passed_on_without_its_records() {
    let mut metadata = Metadata::from([("k".into(), "v".into())]);
    assert!(!digest::remove_record(&mut metadata));
    metadata.insert(ATTEMPT.into(), "step-1".into());
    assert!(!digest::remove_record(&mut metadata));
    for key in [SHA256, KEY] {
        metadata.insert(key.into(), "malformed".into());
        assert!(digest::remove_record(&mut metadata), "{key}");
    }
    assert_eq!(metadata, Metadata::from([("k".into(), "v".into())]));
}

/// Bases that epochs and linked deltas share.
#[test]
fn a_file_with_several_names_is_replaced_and_the_others_keep_the_old_one() {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    let others = ["other", "third"].map(|name| directory.path().join(name));
    let edit = || Edit::open(&path).unwrap().in_place(true).set_metadata([("k", "w")]);
    assert_eq!(edit().dry_run().unwrap(), Edited::InPlace);
    let old = fs::read(&path).unwrap();
    others.iter().for_each(|other| fs::hard_link(&path, other).unwrap());
    if cfg!(unix) || cfg!(windows) {
        assert_eq!(edit().dry_run().unwrap(), Edited::Rewritten);
        assert_eq!(edit().notes().unwrap(), [Note::SeveralNames { names: 3 }]);
        assert_eq!(Edit::open(&path).unwrap().set_metadata([("k", "w")]).notes().unwrap(), []);
        assert_eq!(edit().apply().unwrap(), Edited::Rewritten);
        assert_eq!(Checkpoint::open(&path).unwrap().metadata()["k"], "w");
        others.iter().for_each(|other| assert_eq!(fs::read(other).unwrap(), old));
        // The new file has one name.
        let edit = Edit::open(&path).unwrap().in_place(true).set_metadata([("k", "x")]);
        assert_eq!(edit.notes().unwrap(), []);
        assert_eq!(edit.apply().unwrap(), Edited::InPlace);
    }
}
