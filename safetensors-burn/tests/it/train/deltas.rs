//! Epochs that are kept as deltas.

use std::path::Path;

use safetensors_core::edit::Edit;
use safetensors_core::{Checkpoint as File, digest};
use safetensors_delta::{Options, open_linked};

use super::long::{Run, begun};
use super::*;

/// Saves epochs from 1 on, each third complete, and returns the content of each.
fn saved(count: usize) -> (TempDir, Epochs, Vec<[Content; 3]>) {
    let (dir, epochs, contents, _) = run(count);
    (dir, epochs, contents)
}

/// Saves the epochs, and returns the run after its last step, too.
fn run(count: usize) -> (TempDir, Epochs, Vec<[Content; 3]>, Run) {
    let (dir, epochs) = empty();
    let epochs = epochs.whole_every(3);
    let mut run = begun();
    let checkpointers = epochs.checkpointers(&run.model);
    let contents = (1..=count).map(|epoch| {
        run.next();
        run.save(&checkpointers, epoch);
        run.contents()
    });
    let contents = contents.collect();
    (dir, epochs, contents, run)
}

/// Returns the epochs that the files of an epoch are deltas of.
fn bases(epochs: &Epochs, epoch: usize) -> [Option<usize>; 3] {
    let list = epochs.list().unwrap();
    let found = list.iter().find(|found| found.number() == epoch).unwrap();
    assert!(found.problem().is_none(), "{:?}", found.problem());
    ["model", "optimizer", "scheduler"].map(|name| {
        let delta = epochs.path(epoch).join(name).with_extension("delta");
        let names = if delta.is_dir() { names_in(&delta) } else { vec![] };
        names.iter().find_map(|name| name.strip_prefix("epoch-")?.parse().ok())
    })
}

fn model_delta(epochs: &Epochs, epoch: usize) -> std::path::PathBuf {
    epochs.path(epoch).join("model.delta")
}

#[test]
fn each_nth_epoch_is_complete_and_all_are_restored_bit_for_bit() {
    let (dir, epochs, contents, mut resumed) = run(5);
    for (epoch, base) in [(1, None), (2, Some(1)), (3, Some(1)), (4, None), (5, Some(4))] {
        assert_eq!(bases(&epochs, epoch), [base, base, None], "{epoch}");
        epochs.verify(epoch).unwrap();
        assert_eq!(restored(&epochs.checkpointers_without_module(), epoch), contents[epoch - 1]);
    }
    let len = |path: std::path::PathBuf| fs::metadata(path).unwrap().len();
    let whole = len(epochs.path(1).join("model.safetensors"));
    let delta = len(model_delta(&epochs, 2).join("model-00000-of-00001.safetensors"));
    assert!(delta * 2 < whole, "{delta} of {whole}");
    let names = ["manifest.json", "model.delta", "optimizer.delta", "scheduler.safetensors"];
    assert_eq!(names_in(&epochs.path(3)), names);
    // The files made of the deltas go with the last record.
    assert_eq!(names_in(&dir.path().join("run/checkpoints")).len(), 5);

    // A training that is resumed from a delta.
    let checkpointers = epochs.checkpointers(&resumed.model);
    resumed = resumed.restore(&checkpointers, 5);
    resumed.next();
    resumed.save(&checkpointers, 6);
    assert_eq!(bases(&epochs, 6)[0], Some(4));
    assert_eq!(restored(&checkpointers, 6)[0].0, resumed.contents()[0].0);
}

/// `safetensors delta apply` makes this file for other programs.
#[test]
fn an_applied_delta_has_the_bytes_of_a_full_save() {
    let (_dir, epochs) = empty();
    let mut run = begun();
    let whole = epochs.clone();
    let epochs = Epochs::new(epochs.path(1).with_file_name("deltas")).whole_every(9);
    for epoch in 1..=3 {
        run.next();
        run.save(&whole.checkpointers_without_module(), epoch);
        run.save(&epochs.checkpointers_without_module(), epoch);
    }
    for name in ["model", "optimizer"] {
        let (base, chain) = open_linked(epochs.path(3).join(format!("{name}.delta"))).unwrap();
        let out = epochs.path(3).join(format!("out-{name}"));
        chain.apply(&base, &out, &Options::new()).unwrap();
        let expected = fs::read(whole.path(3).join(format!("{name}.safetensors"))).unwrap();
        assert!(fs::read(out.join("model.safetensors")).unwrap() == expected);
    }
    // An epoch does not open as one of its other files.
    let error = File::open(epochs.path(2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::IsDelta { base } if base == "epoch-1"), "{error}");
}

#[test]
fn no_epoch_loses_its_base() {
    let (_dir, epochs, contents, mut last) = run(3);
    let again = epochs.checkpointers_without_module();
    // The base is saved again, and then deleted, by another program.
    let other = begun();
    other.save(&again, 1);
    assert_eq!(restored(&again, 1), other.contents());
    assert_eq!(restored(&again, 2), contents[1]);
    fs::remove_dir_all(epochs.path(1)).unwrap();
    assert_eq!(restored(&again, 3), contents[2]);
    // The base of the deltas is still the same file.
    let epochs = epochs.whole_every(4);
    last.next();
    last.save(&epochs.checkpointers_without_module(), 4);
    assert_eq!(bases(&epochs, 4)[0], Some(1));
    assert_eq!(epochs.delete_all_but(1, &[2]).unwrap(), [3]);
    assert_eq!(restored(&epochs.checkpointers_without_module(), 2), contents[1]);
    assert_eq!(restored(&epochs.checkpointers_without_module(), 4), last.contents());
    epochs.verify(2).unwrap();
    // A run that goes back compares with earlier epochs.
    assert_eq!(epochs.delete_after(2).unwrap(), [4]);
    let epochs = epochs.whole_every(3);
    last.save(&epochs.checkpointers_without_module(), 3);
    assert_eq!(bases(&epochs, 3)[0], Some(1));
    last.save(&epochs.checkpointers_without_module(), 4);
    assert_eq!(bases(&epochs, 4)[0], None);
}

#[test]
fn an_epoch_is_saved_whole_if_a_delta_would_not_be_smaller() {
    let (_dir, epochs) = empty();
    let epochs = epochs.whole_every(5);
    for epoch in 1..=3 {
        Training::trained(epoch).save(&epochs.checkpointers_without_module(), epoch);
        assert_eq!(bases(&epochs, epoch), [None; 3]);
    }
    for count in [0, 1] {
        let (_dir, epochs) = empty();
        let epochs = epochs.whole_every(count);
        let run = begun();
        (1..=2).for_each(|epoch| run.save(&epochs.checkpointers_without_module(), epoch));
        assert_eq!(bases(&epochs, 2), [None; 3]);
    }
    // One file changes completely.
    let (_dir, epochs) = empty();
    let epochs = epochs.whole_every(5);
    let (mut run, checkpointers) = (begun(), epochs.checkpointers_without_module());
    run.save(&checkpointers, 1);
    run.model = begun().model;
    run.save(&checkpointers, 2);
    assert_eq!(bases(&epochs, 2), [None, Some(1), None]);
    // It is the base of the next one.
    run.save(&checkpointers, 3);
    assert_eq!(bases(&epochs, 3), [Some(2), Some(1), None]);
    assert_eq!(restored(&checkpointers, 3), run.contents());
}

/// Returns the error of an epoch that is not complete.
fn problem(epochs: &Epochs, epoch: usize) -> String {
    let list = epochs.list().unwrap();
    let found = list.iter().find(|found| found.number() == epoch).unwrap();
    let error = found.problem().unwrap();
    let restored = unwrap_error(epochs.checkpointers_without_module().0.restore(epoch));
    assert_eq!(error.to_string(), restored.to_string());
    assert_eq!(epochs.verify(epoch).unwrap_err().to_string(), restored.to_string());
    if error.file().unwrap().contains("epoch-1") {
        assert!(matches!(reason(error), EpochError::Base { base: 1, .. }), "{error}");
    }
    restored.to_string()
}

fn flip(path: &Path, at: impl Fn(usize) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_base_that_is_missing_or_changed_is_an_error_that_names_it() {
    let (_dir, epochs, contents, mut last) = run(3);
    let link = model_delta(&epochs, 3).join("epoch-1/model.safetensors");
    let bytes = fs::read(&link).unwrap();
    let place = |bytes: &[u8]| {
        // Not through the link, which would change all of them.
        fs::remove_file(&link).unwrap();
        fs::write(&link, bytes).unwrap();
    };
    let shown = |bytes: &[u8]| {
        let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        format!("{} bytes and {}", bytes.len(), digest::Digest::compute(&bytes[..8 + len]))
    };
    let expected = format!(
        "{}: burn: the base (epoch 1) is missing or has changed: expected {} (XXH3-128 of \
         the header), found ",
        link.display(),
        shown(&bytes)
    );
    let other = fs::read(epochs.path(1).join("scheduler.safetensors")).unwrap();
    place(&other);
    assert_eq!(problem(&epochs, 3), format!("{expected}{}", shown(&other)));
    fs::remove_file(&link).unwrap();
    assert_eq!(problem(&epochs, 3), format!("{expected}none"));
    assert_eq!(epochs.newest().unwrap(), Some(2));
    // It is no epoch to compare with, so this is the second one after its base.
    last.next();
    last.save(&epochs.checkpointers_without_module(), 4);
    assert_eq!(bases(&epochs, 4)[0], Some(1));

    // A value that has changed is found only by reading.
    fs::write(&link, &bytes).unwrap();
    assert_eq!(restored(&epochs.checkpointers_without_module(), 3), contents[2]);
    for from_end in [1, 20] {
        place(&bytes);
        flip(&link, |len| len - from_end);
        assert_eq!(bases(&epochs, 3)[0], Some(1));
        for error in [
            unwrap_error(epochs.checkpointers_without_module().0.restore(3)),
            epochs.verify(3).unwrap_err(),
        ] {
            assert_eq!(error.file(), link.to_str(), "{error}");
            assert!(matches!(error.kind(), ErrorKind::DigestMismatch { .. }), "{error}");
        }
    }
}

/// A new file would take the place of the base below the epoch, which needs the old one.
#[test]
fn the_files_of_a_delta_and_its_base_are_not_edited() {
    let (_dir, epochs, contents, _) = run(3);
    let delta = model_delta(&epochs, 3);
    let files = names_in(&delta).into_iter().filter(|name| name.ends_with(".safetensors"));
    let files: Vec<_> = files.chain(["epoch-1/model.safetensors".into()]).collect();
    assert!(files.len() > 1, "{files:?}");
    for name in files {
        for in_place in [false, true] {
            let edit = Edit::open(delta.join(&name)).unwrap().in_place(in_place);
            let error = edit.set_metadata([("license", "mit")]).apply().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InManifest { .. }), "{name}: {error}");
        }
    }
    assert_eq!(restored(&epochs.checkpointers_without_module(), 3), contents[2]);
}

/// The length and the digest of its header match the manifest, and it cannot be opened.
#[test]
fn an_epoch_with_a_damaged_base_is_saved_whole() {
    let (_dir, epochs, _, mut last) = run(1);
    let path = epochs.path(1).join("model.safetensors");
    let header = || {
        let bytes = fs::read(&path).unwrap();
        let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        digest::Digest::compute(&bytes[..8 + len]).to_string()
    };
    let before = header();
    flip(&path, |_| 8);
    let manifest = epochs.path(1).join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    assert!(text.contains(&before));
    fs::write(&manifest, text.replace(&before, &header())).unwrap();
    last.next();
    last.save(&epochs.checkpointers_without_module(), 2);
    assert_eq!(bases(&epochs, 2), [None, Some(1), None]);
    let names = ["manifest.json", "model.safetensors", "optimizer.delta", "scheduler.safetensors"];
    assert_eq!(names_in(&epochs.path(2)), names);
    epochs.verify(2).unwrap();
    assert_eq!(restored(&epochs.checkpointers_without_module(), 2), last.contents());
}

#[test]
fn a_delta_that_is_missing_or_changed_is_an_error() {
    let (_dir, epochs, contents) = saved(2);
    for name in ["model.safetensors.index.json", "model-00000-of-00001.safetensors"] {
        let path = epochs.path(2).join("optimizer.delta").join(name);
        let bytes = fs::read(&path).unwrap();
        flip(&path, |_| 30);
        let text = problem(&epochs, 2);
        assert!(text.contains("the header has changed"), "{text}");
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let text = problem(&epochs, 2);
        assert!(text.contains(&format!("should have {} bytes", bytes.len())), "{text}");
        fs::remove_file(&path).unwrap();
        assert!(problem(&epochs, 2).starts_with(path.to_str().unwrap()));
        fs::write(&path, bytes).unwrap();
    }
    // A compressed difference is checked when it is read.
    let path = epochs.path(2).join("optimizer.delta/model-00000-of-00001.safetensors");
    flip(&path, |len| len - 3);
    let error = unwrap_error(epochs.checkpointers_without_module().1.restore(2));
    assert!(error.tensor().is_some_and(|name| name.contains("head")), "{error}");
    assert_eq!(epochs.verify(2).unwrap_err().to_string(), error.to_string());
    flip(&path, |len| len - 3);
    assert_eq!(restored(&epochs.checkpointers_without_module(), 2), contents[1]);
    // A name in the manifest leads nowhere else.
    let path = epochs.path(2).join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(&path, manifest.replace("model-00000", "../model-00000")).unwrap();
    assert!(problem(&epochs, 2).contains("expected the name of a file"));
}

#[test]
fn files_made_from_deltas_can_be_staged_in_memory() {
    let (dir, epochs, contents) = saved(2);
    let staging = dir.path().join("staging");
    fs::create_dir(&staging).unwrap();
    let epochs = epochs.staging(&staging);
    let (model, optimizer, _) = epochs.checkpointers_without_module();
    model.restore(2).unwrap();
    assert_eq!(names_in(&staging).len(), 1);
    // Another epoch takes its place.
    assert_eq!(content(model.restore(1).unwrap()), contents[0][0]);
    assert!(names_in(&staging).is_empty());
    assert_eq!(content(optimizer.restore(2).unwrap()), contents[1][1]);
    drop((model, optimizer));
    assert!(names_in(&staging).is_empty());
}
