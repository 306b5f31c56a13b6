//! Records of a file and what changes it: after each operation a record is right, or it is gone, or
//! the operation was refused.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::digest::{self, Digest, DigestOptions, KEY, Note};
use safetensors_core::edit::{Edit, Edited};
use safetensors_core::ranks::RankRules;
use safetensors_core::save::{GrowingWriter, Order, StreamWriter, write_to};
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, Metadata, Result, Rewrite, SaveOptions,
    ShardOptions, TensorBuf, TensorView, save, save_sharded, serialize,
};
use safetensors_testing::lora::Merge;
use tempfile::tempdir;

use crate::support;

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
    let checkpoint = Checkpoint::open_whole(path).unwrap();
    let checkpoint = match checkpoint.into_parts() {
        Ok(parts) => parts.into_iter().next().unwrap(),
        Err(_) => Checkpoint::open(path).unwrap(),
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

/// An operation on the file at a path. Returns the path of the result.
type Operation = (&'static str, fn(&Path) -> Result<PathBuf>, (usize, bool, bool));

fn edited(
    path: &Path,
    change: impl FnOnce(Edit<'static>) -> Result<Edit<'static>>,
) -> Result<PathBuf> {
    change(Edit::open(path)?)?.apply()?;
    Ok(path.into())
}

fn rewritten(path: &Path, to: &str, change: fn(Rewrite<'_>) -> Rewrite<'_>) -> Result<PathBuf> {
    let to = path.with_file_name(to);
    let checkpoint = Checkpoint::open(path)?;
    change(Rewrite::of(&checkpoint)).save(&to, &SaveOptions::new())?;
    Ok(to)
}

/// The tensors of the file with its metadata.
fn taken(path: &Path) -> Result<([(String, TensorBuf); 2], SaveOptions)> {
    let file = Checkpoint::open(path)?;
    let tensors = ["a", "b"].map(|name| (name.into(), file.tensor(name).unwrap().read().unwrap()));
    Ok((tensors, SaveOptions::new().metadata(file.metadata().clone())))
}

fn written(path: &Path, bytes: Vec<u8>) -> Result<PathBuf> {
    let to = path.with_file_name("written.safetensors");
    fs::write(&to, bytes).map_err(ErrorKind::Io)?;
    Ok(to)
}

fn digests(sha256: bool) -> DigestOptions {
    DigestOptions::new().sha256(sha256)
}

/// Those that change the file itself.
const CHANGES: &[Operation] = &[
    (
        "set metadata in place",
        |path| edited(path, |edit| Ok(edit.in_place(true).set_metadata([("k", "w")]))),
        (3, true, true),
    ),
    (
        "set metadata in a new file",
        |path| edited(path, |edit| Ok(edit.set_metadata([("k", "w")]))),
        (3, true, true),
    ),
    (
        "remove the digests of tensors",
        |path| edited(path, |edit| Ok(edit.remove_metadata([KEY]))),
        (0, true, true),
    ),
    (
        "rename",
        |path| edited(path, |edit| Ok(edit.rename([("a", "b"), ("b", "x")]))),
        (3, true, true),
    ),
    ("remove", |path| edited(path, |edit| Ok(edit.remove(["a"]))), (2, false, true)),
    ("append", |path| edited(path, |edit| Ok(edit.append([("d", bytes(&[3]))]))), (3, false, true)),
    (
        "append nothing",
        |path| edited(path, |edit| Ok(edit.append([("d", bytes(&[0]))]))),
        (3, true, true),
    ),
    (
        "replace",
        |path| edited(path, |edit| Ok(edit.remove(["a"]).append([("a", bytes(&[3]))]))),
        (2, false, true),
    ),
    (
        "another order",
        |path| edited(path, |edit| Ok(edit.order(Order::Alignment).rename([("a", "z")]))),
        (3, false, true),
    ),
    ("another alignment", |path| edited(path, |edit| Ok(edit.align(4096))), (3, true, true)),
    (
        "record, rename",
        |path| edited(path, |edit| Ok(edit.record_digests(&digests(true))?.rename([("a", "z")]))),
        (3, true, true),
    ),
    (
        "record, remove",
        |path| edited(path, |edit| Ok(edit.remove(["a"]).record_digests(&digests(true))?)),
        (2, true, true),
    ),
    (
        "record, append",
        |path| {
            edited(path, |edit| {
                Ok(edit.record_digests(&digests(true))?.append([("d", bytes(&[3]))]))
            })
        },
        (4, true, true),
    ),
    (
        "record, append nothing",
        |path| {
            edited(path, |edit| {
                let edit = edit.in_place(true).record_digests(&digests(true))?;
                Ok(edit.append([("d", bytes(&[0]))]))
            })
        },
        (4, true, true),
    ),
    (
        "record, replace and rename",
        |path| {
            edited(path, |edit| {
                let edit = edit.remove(["a"]).append([("a", bytes(&[3]))]).rename([("b", "z")]);
                edit.record_digests(&digests(true))
            })
        },
        (3, true, true),
    ),
    (
        "record no SHA-256, append",
        |path| {
            edited(path, |edit| {
                Ok(edit.record_digests(&digests(false))?.append([("d", bytes(&[3]))]))
            })
        },
        (4, false, true),
    ),
    (
        "record the SHA-256 alone, append",
        |path| {
            edited(path, |edit| {
                let options = DigestOptions::new().tensors(false).sha256(true);
                Ok(edit.append([("d", bytes(&[3]))]).record_digests(&options)?)
            })
        },
        (3, true, true),
    ),
    (
        "record, then not",
        |path| {
            edited(path, |edit| {
                let edit = edit.record_digests(&digests(true))?.append([("d", bytes(&[3]))]);
                Ok(edit.remove_metadata([KEY, SHA256]))
            })
        },
        (0, false, true),
    ),
    (
        "record, clear",
        |path| edited(path, |edit| Ok(edit.record_digests(&digests(true))?.clear_metadata())),
        (0, false, false),
    ),
    ("rewrite", |path| rewritten(path, NAME, |it| it), (0, false, false)),
    (
        "cast",
        |path| {
            rewritten(path, NAME, |it| {
                it.cast(&ConvertOptions::new(), |_, _| Some(Dtype::U16)).unwrap()
            })
        },
        (0, false, false),
    ),
    (
        "write shards",
        |path| {
            let checkpoint = Checkpoint::open(path)?;
            let options = ShardOptions::new().max_shard_size(6.into());
            Rewrite::of(&checkpoint).save_sharded(path.parent().unwrap(), &options)?;
            Ok(path.parent().unwrap().into())
        },
        (0, false, false),
    ),
    (
        "grow",
        |path| {
            let writer = GrowingWriter::resume(path, &SaveOptions::new())?;
            writer.add("d", &bytes(&[3]))?;
            writer.finish()?;
            Ok(path.into())
        },
        (4, false, false),
    ),
    (
        "save",
        |path| {
            let (tensors, options) = taken(path)?;
            save(path, tensors, &options)?;
            Ok(path.into())
        },
        (0, false, false),
    ),
];

/// Those that write another file, with the metadata of this one.
const COPIES: &[Operation] = &[
    (
        "select",
        |path| rewritten(path, "new.safetensors", |it| it.select(|name, _| name == "a")),
        (0, false, false),
    ),
    (
        "write for ranks",
        |path| {
            let (to, checkpoint) = (path.with_file_name("ranks"), Checkpoint::open(path)?);
            let rewrite = Rewrite::of(&checkpoint);
            let rules = RankRules::new().parse_rule("b=split:0")?.parse_rule("*=replicate")?;
            let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new())?;
            rewrite.save_ranks(&to, &plan, "divide", &ShardOptions::new())?;
            Ok(to)
        },
        (0, false, true),
    ),
    (
        "save with digests",
        |path| {
            let (tensors, options) = taken(path)?;
            let to = path.with_file_name("new.safetensors");
            save(&to, tensors, &options.digests(true))?;
            Ok(to)
        },
        (2, false, false),
    ),
    (
        "save in shards",
        |path| {
            let (tensors, options) = taken(path)?;
            let to = path.with_file_name("shards");
            let options = ShardOptions::new().max_shard_size(6.into()).save_options(options);
            save_sharded(&to, tensors, &options)?;
            assert!(
                !fs::read_to_string(to.join("model.safetensors.index.json")).unwrap().contains(KEY)
            );
            Ok(to)
        },
        (0, false, false),
    ),
    (
        "serialize",
        |path| {
            let (tensors, options) = taken(path)?;
            written(path, serialize(tensors, &options)?)
        },
        (0, false, false),
    ),
    (
        "write to a pipe",
        |path| {
            let ((tensors, options), mut pipe) = (taken(path)?, Vec::new());
            write_to(&mut pipe, tensors, &options.digests(true))?;
            written(path, pipe)
        },
        (2, false, false),
    ),
    (
        "stream",
        |path| {
            let (to, (_, options)) = (path.with_file_name("new.safetensors"), taken(path)?);
            let writer = StreamWriter::create(&to, [("a", Dtype::U8, [2])], &options)?;
            writer.tensor("a")?.append(&[1_u8, 2])?;
            writer.finish()?;
            Ok(to)
        },
        (0, false, false),
    ),
    (
        "grow from nothing",
        |path| {
            let (to, (_, options)) = (path.with_file_name("new.safetensors"), taken(path)?);
            let writer = GrowingWriter::create(&to, &options)?;
            writer.add("d", &bytes(&[3]))?;
            writer.finish()?;
            Ok(to)
        },
        (0, false, false),
    ),
];

#[test]
fn after_each_operation_every_record_is_right_or_gone() {
    for (name, operation, expected) in CHANGES.iter().chain(COPIES) {
        let directory = tempdir().unwrap();
        let path = create(directory.path());
        assert_eq!(compared(&path), (3, true, true));
        let to = operation(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(compared(&to), *expected, "{name}");
    }
}

/// Merging an adapter computes other values.
#[test]
fn a_merged_checkpoint_has_no_records_of_its_base() {
    let fixture = Merge::named("exact-rank-1");
    let directory = tempdir().unwrap();
    let path = directory.path().join(NAME);
    fs::copy(fixture.model(), &path).unwrap();
    record_everything(&path);
    let merged = Checkpoint::open(&path).unwrap().merged(fixture.adapters()).unwrap();
    let to = directory.path().join("merged.safetensors");
    Rewrite::of(&merged).save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(compared(&to), (0, false, false));
}

/// Writes a manifest that describes a file as burn's epochs do.
fn describe(path: &Path, directory: &Path) {
    let file = fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let digest = Digest::of(&file[..header]);
    let json = format!(r#"{{"files": {{"{NAME}": {{"header_xxh3_128": "{digest}"}}}}}}"#);
    support::write(directory, "manifest.json", json);
}

fn assert_refused(name: &str, error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::InManifest { .. }), "{name}: {error}");
    assert!(error.to_string().contains("manifest.json"), "{name}: {error}");
    assert!(error.file().is_some(), "{name}: {error}");
}

#[test]
fn a_file_that_a_manifest_describes_is_read_and_never_changed() {
    for (name, operation, _) in CHANGES {
        let directory = tempdir().unwrap();
        let path = create(directory.path());
        describe(&path, directory.path());
        let (before, names) = (fs::read(&path).unwrap(), support::names_in(directory.path()));
        let error = operation(&path).err().unwrap_or_else(|| panic!("{name} changed the file"));
        assert_refused(name, &error);
        assert_eq!(fs::read(&path).unwrap(), before, "{name}");
        assert_eq!(support::names_in(directory.path()), names, "{name}");
    }
    for (name, operation, expected) in COPIES {
        let directory = tempdir().unwrap();
        let path = create(directory.path());
        describe(&path, directory.path());
        let to = operation(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(compared(&to), *expected, "{name}");
    }
}

/// The base of an epoch that is kept as a delta is two directories below the manifest.
#[test]
fn a_manifest_is_found_above_the_file_and_where_a_link_is() {
    let set =
        |path: &Path| Edit::open(path).and_then(|edit| edit.set_metadata([("k", "w")]).apply());
    let directory = tempdir().unwrap();
    let epoch = directory.path().join("epoch-4");
    for below in ["", "model.delta", "model.delta/epoch-1"] {
        let folder = epoch.join(below);
        fs::create_dir_all(&folder).unwrap();
        let path = create(&folder);
        describe(&path, &epoch);
        assert_refused(below, &set(&path).unwrap_err());
        let dry_run = Edit::open_read_only(&path).unwrap().set_metadata([("k", "w")]).dry_run();
        assert_refused(below, &dry_run.unwrap_err());
        let unchanged = Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply();
        assert_eq!(unchanged.unwrap(), Edited::Unchanged, "{below}");
        #[cfg(unix)]
        {
            fs::rename(&path, directory.path().join("blob")).unwrap();
            std::os::unix::fs::symlink(directory.path().join("blob"), &path).unwrap();
            assert_refused(below, &set(&path).unwrap_err());
            fs::remove_file(&path).unwrap();
        }
    }
    // A manifest of something else, one that is none, and one of a file that has changed since.
    let path = create(&epoch);
    for text in ["{}", "\u{0}", &"x".repeat(2 << 20)] {
        support::write(&epoch, "manifest.json", text);
        set(&path).unwrap();
        Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap();
    }
    describe(&path, &epoch);
    let mut other = fs::read(&path).unwrap();
    let at = other.windows(3).position(|text| text == b"\"k\"").unwrap();
    other[at + 1] = b'K';
    fs::write(&path, other).unwrap();
    set(&path).unwrap();
    fs::remove_file(epoch.join("manifest.json")).unwrap();
    fs::create_dir(epoch.join("manifest.json")).unwrap();
    Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap();
    #[cfg(unix)]
    {
        fs::remove_dir(epoch.join("manifest.json")).unwrap();
        support::make_fifo(&epoch.join("manifest.json"));
        support::must_not_hang(move || set(&path).unwrap());
    }
}

#[test]
fn an_edit_says_what_it_does_besides() {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    let edit = || Edit::open_read_only(&path).unwrap();
    assert_eq!(edit().set_metadata([("k", "w")]).notes().unwrap(), []);
    let removed = || Note::Removed { key: SHA256 };
    assert_eq!(edit().remove(["a"]).notes().unwrap(), [removed()]);
    // The caller knows of what it removes, sets or records itself.
    assert_eq!(edit().remove(["a"]).remove_metadata([SHA256]).notes().unwrap(), []);
    assert_eq!(edit().remove(["a"]).set_metadata([(SHA256, "0x")]).notes().unwrap(), []);
    let recorded = edit().remove(["a"]).record_digests(&digests(true)).unwrap();
    assert_eq!(recorded.notes().unwrap(), []);

    for name in ["model.sig", "model.safetensors.asc", "config.json.sig", "config.json", "sig"] {
        support::write(directory.path(), name, "");
    }
    let signature = |name: &str| Note::Signature { path: directory.path().join(name) };
    let signatures = [signature("model.safetensors.asc"), signature("model.sig")];
    assert_eq!(edit().set_metadata([("k", "w")]).notes().unwrap(), signatures);
    assert_eq!(edit().set_metadata([("k", "v")]).notes().unwrap(), [], "nothing changes");
    assert_eq!(
        signature("model.sig").to_string(),
        "the signature model.sig no longer holds if it covers this file: sign again"
    );
}

#[test]
fn a_plan_says_what_a_rewrite_does_besides() {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    support::write(directory.path(), "model.sig", "");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rewrite = Rewrite::of(&checkpoint);
    let notes =
        |options: &SaveOptions, to: &Path| rewrite.plan(options).unwrap().notes(to).unwrap();
    let removed = [SHA256, KEY].map(|key| Note::Removed { key });
    let signature = Note::Signature { path: directory.path().join("model.sig") };
    let elsewhere = directory.path().join("new/other.safetensors");
    assert_eq!(notes(&SaveOptions::new(), &elsewhere), removed);
    assert_eq!(notes(&SaveOptions::new().digests(true), &elsewhere), removed[..1]);
    let [sha256, tensors] = removed;
    assert_eq!(
        notes(&SaveOptions::new(), &path),
        [sha256.clone(), tensors.clone(), signature.clone()]
    );
    let sharded = rewrite.plan_sharded(&ShardOptions::new()).unwrap();
    assert_eq!(sharded.notes(directory.path()).unwrap(), [sha256, tensors, signature]);
    // The plan shows the metadata that is written.
    assert!(!rewrite.plan(&taken(&path).unwrap().1).unwrap().metadata().contains_key(KEY));
    // And it refuses what the save would.
    describe(&path, directory.path());
    assert_refused("plan", &sharded.check_destination(directory.path()).unwrap_err());
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
