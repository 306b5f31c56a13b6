//! What an interruption leaves at each step, and what the next call makes of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;

use safetensors_core::edit::{Edit, restore_header};
use safetensors_core::{Limits, LoadOptions, SaveOptions, ShardOptions, TensorBuf, save_sharded};
use tempfile::TempDir;

use super::*;
use crate::delta::Delta;
use crate::format::Encoding;
use crate::make::{INDEX, make};

type Tensors = BTreeMap<String, Vec<u8>>;

fn tensors(values: [u8; 3]) -> Tensors {
    let long = [vec![7; 300_000], vec![values[0]; 2]].concat();
    let tensors = [("long", long), ("zeros", vec![values[1]; 900]), ("w", vec![values[2]])];
    tensors.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn views(tensors: &Tensors) -> impl Iterator<Item = (&String, TensorBuf)> {
    let buf = |bytes: &Vec<u8>| TensorBuf::from_vec(vec![bytes.len()], bytes.clone()).unwrap();
    tensors.iter().map(move |(name, bytes)| (name, buf(bytes)))
}

fn read(path: &Path) -> Tensors {
    let checkpoint = Checkpoint::open(path).unwrap();
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    checkpoint.tensors().zip(read).map(|(it, buf)| (it.name().into(), buf.bytes().into())).collect()
}

/// A base in files of at most so many bytes, and what a delta to [`new`] needs.
struct Torn {
    directory: TempDir,
    chain: Chain,
    journal: Journal,
    files: Vec<InPlace>,
}

fn old() -> Tensors {
    tensors([1, 2, 3])
}

fn new() -> Tensors {
    tensors([9, 0, 3])
}

fn quick() -> Options {
    Options::new().durable(false)
}

impl Torn {
    /// The journal is written, and nothing else.
    fn new(most: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("base");
        let each = SaveOptions::new().durable(false);
        let options = ShardOptions::new().max_shard_size(most.into()).save_options(each);
        save_sharded(&path, views(&old()), &options).unwrap();
        // As `apply_in_place` opens it: on Windows that is another path.
        let place = place_of(&path).unwrap();
        let base = Checkpoint::open(&place).unwrap();
        let delta = make(&base, views(&new()), directory.path().join("1"), &quick()).unwrap();
        let chain = Chain::new([delta]).unwrap();
        let journal = Journal::beside(&place);
        let files = base.files().iter().map(|file| InPlace::open(file.path(), false).unwrap());
        let files: Vec<_> = files.collect();
        chain.write_journal(&base, &journal, &files, &quick()).unwrap();
        Self { directory, chain, journal, files }
    }

    fn base(&self) -> PathBuf {
        self.directory.path().join("base")
    }

    fn number(&self) -> u16 {
        let list = fs::read_to_string(self.journal.path().join("files.json")).unwrap();
        list.trim_start_matches('[').split_once(',').unwrap().0.parse().unwrap()
    }

    /// Marks so many files, and fills their data with rubbish where it is to be written.
    fn write(&mut self, count: usize) {
        let number = self.number();
        for file in &mut self.files[..count] {
            file.begin(number).unwrap();
            let info = file.header().get("zeros");
            if let Some(range) = info.map(|info| info.data_offsets()) {
                file.write_all_at(&[0; 450], file.header().data_start() + range.start).unwrap();
            }
        }
    }

    fn is_refused(&self) -> bool {
        match Checkpoint::open(self.base()) {
            Ok(_) => false,
            Err(error) => {
                assert!(matches!(error.kind(), CoreKind::TornData), "{error}");
                assert!(error.file().is_some_and(|file| file.ends_with(".safetensors")));
                true
            }
        }
    }

    /// The process ends here, and the next call follows.
    fn next_call(&mut self) -> Result<()> {
        self.files.clear();
        self.chain.apply_in_place(self.base(), &quick())
    }

    fn assert_new(&self) {
        assert_eq!(read(&self.base()), new());
        let hidden = fs::read_dir(self.base()).unwrap().map(|it| it.unwrap().file_name());
        let hidden: Vec<_> = hidden.filter(|name| name.as_encoded_bytes()[0] == b'.').collect();
        assert!(hidden.is_empty(), "{hidden:?}");
    }
}

#[test]
fn every_step_is_completed_by_the_next_call() {
    for most in [u64::MAX, 1000] {
        for marked in 0.. {
            let mut torn = Torn::new(most);
            if marked > torn.files.len() {
                break;
            }
            torn.write(marked);
            let files: Vec<_> = torn.files.iter().map(|it| it.source().path().to_owned()).collect();
            // Opening waits for a process that has the files locked.
            torn.files.clear();
            assert_eq!(torn.is_refused(), marked > 0);
            if marked == 0 {
                assert_eq!(read(&torn.base()), old());
            }
            for file in &files[..marked] {
                // No edit takes it for one of its own.
                assert!(matches!(restore_header(file).unwrap_err().kind(), CoreKind::TornData));
                assert!(matches!(Edit::open(file).unwrap_err().kind(), CoreKind::TornData));
            }
            torn.next_call().unwrap();
            torn.assert_new();
        }
        // All is written, and some marks are removed.
        let mut torn = Torn::new(most);
        torn.write(torn.files.len());
        torn.journal.write(&mut torn.files, &quick()).unwrap();
        let number = torn.number();
        let last = torn.files.last().unwrap().source().path().to_owned();
        torn.files.clear();
        InPlace::open(last, false).unwrap().begin(number).unwrap();
        assert!(torn.is_refused());
        torn.next_call().unwrap();
        torn.assert_new();
        torn.next_call().unwrap();
        torn.assert_new();
    }
}

/// Deltas that begin where the interrupted ones end.
#[test]
fn other_deltas_complete_it_and_are_applied_then() {
    let mut torn = Torn::new(1000);
    torn.write(1);
    let path = torn.directory.path().join("next");
    let newer = SaveOptions::new().durable(false);
    safetensors_core::save(&path, views(&new()), &newer).unwrap();
    let last = tensors([8, 0, 4]);
    let options = quick().versions("000001", "000002");
    let base = Checkpoint::open(&path).unwrap();
    let delta = make(&base, views(&last), torn.directory.path().join("2"), &options).unwrap();
    torn.files.clear();
    Chain::new([delta]).unwrap().apply_in_place(torn.base(), &quick()).unwrap();
    assert_eq!(read(&torn.base()), last);
}

/// Deltas of the versions of the interrupted ones, to other tensors.
#[test]
fn deltas_of_the_same_versions_are_looked_at_after_it_is_completed() {
    let mut torn = Torn::new(1000);
    torn.write(1);
    let [path, other] = ["next", "other"].map(|name| torn.directory.path().join(name));
    let newer = SaveOptions::new().durable(false);
    safetensors_core::save(&path, views(&new()), &newer).unwrap();
    let last = tensors([8, 0, 4]);
    let base = Checkpoint::open(&path).unwrap();
    let delta = make(&base, views(&last), torn.directory.path().join("2"), &quick()).unwrap();
    torn.chain = Chain::new([delta]).unwrap();
    torn.next_call().unwrap();
    assert_eq!(read(&torn.base()), last);

    // Made of another base, it fails once the interrupted change is completed.
    let mut torn = Torn::new(1000);
    torn.write(1);
    safetensors_core::save(&other, views(&tensors([5, 5, 5])), &newer).unwrap();
    let base = Checkpoint::open(&other).unwrap();
    let delta = make(&base, views(&last), torn.directory.path().join("2"), &quick()).unwrap();
    torn.chain = Chain::new([delta]).unwrap();
    let error = torn.next_call().unwrap_err();
    assert!(is_other_base(&error), "{error}");
    torn.assert_new();
}

/// The process ends when the marks are removed, and the journal is not.
#[test]
fn deltas_without_digests_are_applied_once() {
    for encoding in [Encoding::Xor, Encoding::Overwrite] {
        let mut torn = Torn::new(1000);
        let base = Checkpoint::open(torn.base()).unwrap();
        let path = torn.directory.path().join("theirs");
        make(&base, views(&new()), &path, &quick().encoding(encoding)).unwrap();
        let index = path.join(INDEX);
        let text = fs::read_to_string(&index).unwrap();
        let kept = text.lines().filter(|line| !line.contains("_blake3\""));
        let kept = kept.collect::<Vec<_>>().join("\n");
        fs::write(&index, kept).unwrap();
        let delta = Delta::open(&path).unwrap();
        assert_eq!(delta.digests(), [None; 2]);
        torn.chain = Chain::new([delta]).unwrap();
        torn.write(torn.files.len());
        torn.journal.write(&mut torn.files, &quick()).unwrap();
        torn.next_call().unwrap();
        torn.assert_new();
        torn.next_call().unwrap();
        torn.assert_new();
        // One of the two tensors that change is as it should be. Overwritten, the other is, too.
        let other = torn.directory.path().join("other");
        let each = SaveOptions::new().durable(false);
        safetensors_core::save(&other, views(&tensors([9, 1, 3])), &each).unwrap();
        let applied = torn.chain.apply_in_place(&other, &quick());
        assert_eq!(applied.is_err(), encoding == Encoding::Xor);
    }
}

#[test]
fn a_journal_is_written_to_its_own_files_alone() {
    // One file of several is replaced by a save, while another is marked.
    let mut torn = Torn::new(1000);
    torn.write(1);
    assert!(torn.files.len() > 1);
    let other = torn.files[1].source().path().to_owned();
    let copy = torn.directory.path().join("copy");
    fs::copy(&other, &copy).unwrap();
    fs::rename(&copy, &other).unwrap();
    let before = fs::read(&other).unwrap();
    let error = torn.next_call().unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::OtherJournal { .. })), "{error}");
    assert_eq!(fs::read(&other).unwrap(), before);
    assert!(torn.is_refused());

    // The whole base is replaced: the journal is of no use any more.
    let mut torn = Torn::new(u64::MAX);
    torn.write(1);
    let file = torn.files[0].source().path().to_owned();
    let saved = torn.directory.path().join("saved");
    let newer = tensors([1, 2, 9]);
    safetensors_core::save(&saved, views(&newer), &SaveOptions::new().durable(false)).unwrap();
    fs::rename(&saved, &file).unwrap();
    let error = torn.next_call().unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::WrongBase { .. })), "{error}");
    assert_eq!(read(&torn.base()), newer);
    assert!(!torn.journal.path().exists());
}

/// Another process may put files there, and its own journal, while none is there to be locked.
#[test]
fn a_journal_whose_files_are_all_gone_is_only_replaced() {
    let mut torn = Torn::new(1000);
    for file in std::mem::take(&mut torn.files) {
        fs::remove_file(file.source().path()).unwrap();
    }
    let number = torn.number();
    assert_eq!(torn.journal.complete(&quick()).unwrap(), None);
    assert_eq!(torn.number(), number);
    // The base is saved anew, in other files. The new journal takes the place of the old one.
    let other = torn.directory.path().join("other");
    let each = SaveOptions::new().durable(false);
    let options = ShardOptions::new().max_shard_size(100_000_u64.into()).save_options(each);
    save_sharded(&other, views(&old()), &options).unwrap();
    for entry in fs::read_dir(&other).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), torn.base().join(entry.file_name())).unwrap();
    }
    torn.next_call().unwrap();
    torn.assert_new();
}

#[test]
fn a_journal_stays_while_a_file_has_the_mark_of_another() {
    let mut torn = Torn::new(1000);
    let number = torn.number();
    torn.files[0].begin(number.wrapping_add(1)).unwrap();
    let error = torn.next_call().unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::OtherJournal { .. })), "{error}");
    assert_eq!(torn.number(), number);
    assert!(torn.is_refused());
}

#[test]
fn a_hostile_journal_writes_nowhere_else() {
    let mut torn = Torn::new(u64::MAX);
    torn.write(1);
    torn.files.clear();
    let list = torn.journal.path().join("files.json");
    let sound = fs::read_to_string(&list).unwrap();
    let victim = torn.directory.path().join("model.safetensors");
    fs::copy(torn.base().join("model.safetensors"), &victim).unwrap();
    let absolute = victim.to_str().unwrap().to_owned();
    let victim_before = fs::read(&victim).unwrap();
    let names = ["../model.safetensors", &absolute, ".."];
    let names = names.map(|name| sound.replace("model.safetensors", name));
    let lists = ["", "[]", &sound.replace("\"long\"", "\"q\"")].map(String::from);
    for wrong in names.iter().chain(&lists) {
        fs::write(&list, wrong).unwrap();
        torn.next_call().unwrap_err();
        assert_eq!(fs::read(&victim).unwrap(), victim_before);
        assert!(torn.is_refused());
    }
    let huge = fs::File::create(&list).unwrap();
    huge.set_len(Limits::default().index_bytes + 1).unwrap();
    drop(huge);
    let error = torn.next_call().unwrap_err();
    assert!(matches!(error.kind(), CoreKind::BadIndex { .. }), "{error}");
    #[cfg(unix)]
    {
        let link = torn.base().join("link.safetensors");
        std::os::unix::fs::symlink(&victim, link).unwrap();
        fs::write(&list, sound.replace("model.safetensors", "link.safetensors")).unwrap();
        let error = torn.next_call().unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::OtherJournal { .. })), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), victim_before);
        fs::remove_file(&list).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &list).unwrap();
        let error = torn.next_call().unwrap_err();
        assert!(matches!(error.kind(), CoreKind::NotAFile { .. }), "{error}");
        fs::remove_file(&list).unwrap();
        fs::remove_file(torn.base().join("link.safetensors")).unwrap();
    }
    // A journal that would undo itself.
    fs::write(&list, &sound).unwrap();
    let index = torn.journal.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("overwrite-or-whole", "xor-or-whole")).unwrap();
    let error = torn.next_call().unwrap_err();
    assert!(error.to_string().contains("should be overwrite-or-whole, found \"xor\""), "{error}");
    fs::write(&index, text).unwrap();
    torn.next_call().unwrap();
    torn.assert_new();
    assert!(Delta::open(torn.journal.path()).is_err());
}
