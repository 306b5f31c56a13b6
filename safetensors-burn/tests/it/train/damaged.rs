//! Epochs that differ from their save are refused, with the reason in the error.

use std::path::Path;

use safetensors_core::edit::Edit;
use safetensors_core::{Checkpoint as File, Rewrite, SaveOptions};

use super::*;

/// Restores each record of epoch 1. Returns the error, which all must give.
fn refused(epochs: &Epochs) -> Error {
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.restore(1));
    let text = error.to_string();
    assert_eq!(unwrap_error(optimizer.restore(1)).to_string(), text);
    assert_eq!(unwrap_error(scheduler.restore(1)).to_string(), text);
    assert_eq!(epochs.newest().unwrap(), None);
    let list = epochs.list().unwrap();
    assert_eq!(list[0].problem().unwrap().to_string(), text);
    error
}

/// Changes the manifest of epoch 1.
fn change_manifest(epochs: &Epochs, change: impl FnOnce(&mut serde_json::Value)) {
    let path = epochs.path(1).join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn a_missing_epoch_is_an_error_with_the_existing_ones() {
    let (_dir, epochs) = saved(4);
    let (model, ..) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.restore(1));
    assert!(matches!(reason(&error), EpochError::NotFound { found } if *found == [4]), "{error}");
    let (_dir, epochs) = empty();
    let (model, ..) = epochs.checkpointers_without_module();
    assert!(unwrap_error(model.restore(1)).to_string().contains("the directory has none"));
}

/// As a copy that was interrupted, or a directory of another program.
#[test]
fn an_epoch_without_a_manifest_is_refused() {
    let (_dir, epochs) = saved(1);
    fs::remove_file(epochs.path(1).join("manifest.json")).unwrap();
    let error = refused(&epochs);
    assert!(matches!(reason(&error), EpochError::NoManifest { .. }), "{error}");
    assert_eq!(error.file(), epochs.path(1).to_str());
}

#[test]
fn a_manifest_of_another_format_is_refused() {
    let (_dir, epochs) = saved(1);
    let path = epochs.path(1).join("manifest.json");
    let good = fs::read_to_string(&path).unwrap();
    for bad in [
        String::new(),
        "[]".into(),
        good.replace("safetensors-bridge epoch", "another format"),
        good.replace("\"version\": 1", "\"version\": true"),
        good.replace("model.safetensors", "../model.safetensors"),
        good.replace("model.safetensors", ".."),
        good[..good.len() - 20].into(),
        format!("{}{good}", " ".repeat(1 << 20)),
    ] {
        assert_ne!(bad, good);
        fs::write(&path, bad).unwrap();
        let error = refused(&epochs);
        assert!(matches!(reason(&error), EpochError::BadManifest { .. }), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    // From another release, with any other content in the manifest.
    for (old, new) in [("\"version\": 1", "\"version\": 9"), ("\"files\"", "\"contents\"")] {
        fs::write(&path, good.replace("\"version\": 1", "\"version\": 9").replace(old, new))
            .unwrap();
        let error = refused(&epochs);
        let version = reason(&error);
        assert!(matches!(version, EpochError::Version { found: 9, .. }), "{error}");
    }
    // A directory that was renamed.
    fs::write(&path, good).unwrap();
    fs::rename(epochs.path(1), epochs.path(2)).unwrap();
    let (model, ..) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.restore(2));
    assert!(matches!(reason(&error), EpochError::OtherEpoch { expected: 2, found: 1 }), "{error}");
}

#[test]
fn files_that_are_missing_or_have_another_length() {
    for name in ["model", "optimizer", "scheduler"] {
        let (_dir, epochs) = saved(1);
        let path = epochs.path(1).join(format!("{name}.safetensors"));
        let bytes = fs::read(&path).unwrap();
        for bytes in [&bytes[..bytes.len() - 1], &[], &[&bytes[..], b" "].concat()] {
            fs::write(&path, bytes).unwrap();
            let error = refused(&epochs);
            let EpochError::Length { found, .. } = reason(&error) else { panic!("{error}") };
            assert_eq!(*found, bytes.len() as u64);
            assert_eq!(error.file(), path.to_str());
        }
        fs::remove_file(&path).unwrap();
        let error = refused(&epochs);
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
}

#[cfg(unix)]
#[test]
fn a_fifo_is_not_opened() {
    for name in ["manifest.json", "optimizer.safetensors"] {
        let (_dir, epochs) = saved(1);
        let path = epochs.path(1).join(name);
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = refused(&epochs);
        assert!(matches!(error.kind(), ErrorKind::NotAFile { .. }), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
}

/// Every byte of a file is covered by the digest of the header or of a tensor.
#[test]
fn any_changed_byte_of_an_epoch_is_detected() {
    let (_dir, epochs) = saved(1);
    let path = epochs.path(1).join("optimizer.safetensors");
    let good = fs::read(&path).unwrap();
    let header = 8 + usize::from(good[0]) + 256 * usize::from(good[1]);
    let (mut headers, mut data) = (0, 0);
    for at in (0..good.len()).step_by(7).chain([good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        if at < header {
            let error = refused(&epochs);
            assert!(matches!(reason(&error), EpochError::Header { .. }), "{at}: {error}");
            headers += 1;
        } else {
            let error = unwrap_error(epochs.checkpointers_without_module().1.restore(1));
            assert!(matches!(error.kind(), ErrorKind::DigestMismatch { .. }), "{at}: {error}");
            assert!(error.tensor().unwrap().contains(".momentum."));
            assert!(epochs.verify(1).is_err());
            // The other records do not depend on it.
            epochs.checkpointers_without_module().0.restore(1).unwrap();
            data += 1;
        }
    }
    assert!(headers > 100 && data > 10, "{headers} and {data}");
    // The last byte is still wrong, which only the digests say.
    assert_eq!(epochs.newest().unwrap(), Some(1));
    assert!(epochs.passed_over().unwrap().is_empty());
    let comparing = epochs.clone().digests(true);
    assert_eq!(comparing.newest().unwrap(), None);
    let passed_over = comparing.passed_over().unwrap();
    let [epoch] = &passed_over[..] else { panic!("{passed_over:?}") };
    let problem = epoch.problem().unwrap();
    assert!(matches!(problem.kind(), ErrorKind::DigestMismatch { .. }), "{problem}");
    fs::write(&path, good).unwrap();
    epochs.verify(1).unwrap();
    epochs.checkpointers_without_module().1.restore(1).unwrap();
    assert_eq!(comparing.newest().unwrap(), Some(1));
    assert!(comparing.passed_over().unwrap().is_empty());
}

/// burn's loop panics with `Debug` of the error that it got.
#[test]
fn check_refuses_an_epoch_of_another_model_with_the_message_of_restore() {
    let (_dir, epochs) = saved(1);
    epochs.check(1, &Model::new()).unwrap();
    let before = files(&epochs, 1);
    let other = LinearConfig::new(3, 4).init(&Device::default());
    let error = epochs.check(1, &other).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Mismatches { .. }), "{error}");
    let restored = epochs.checkpointers(&other).0.restore(1);
    let burns = format!("{:?}", restored.err().unwrap());
    assert!(burns.contains(&format!("error: {error} }}")), "{burns}");
    assert_eq!(files(&epochs, 1), before);
    // Of an epoch that burn would begin to restore, each file is looked at.
    fs::remove_file(epochs.path(1).join("scheduler.safetensors")).unwrap();
    assert!(matches!(epochs.check(1, &Model::new()).unwrap_err().kind(), ErrorKind::Io(_)));
    let error = epochs.check(2, &Model::new()).unwrap_err();
    assert!(matches!(reason(&error), EpochError::NotFound { .. }), "{error}");
}

/// A manifest that fits files of something else.
#[test]
fn a_file_that_is_no_record() {
    let (_dir, epochs) = saved(1);
    let (_, optimizer, _) = epochs.checkpointers_without_module();
    let rewrite = |from: &str, to: &str| {
        let path = epochs.path(1).join("optimizer.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|found| found == from.as_bytes()).unwrap();
        assert_eq!(from.len(), to.len());
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, &bytes).unwrap();
        // The manifest is made to fit.
        let header = 8 + usize::from(bytes[0]) + 256 * usize::from(bytes[1]);
        let digest = safetensors_core::digest::Digest::compute(&bytes[..header]).to_string();
        change_manifest(&epochs, |manifest| {
            manifest["files"]["optimizer.safetensors"]["header_xxh3_128"] = digest.into();
        });
    };
    for (from, to) in [
        ("safetensors_bridge.record", "safetensors_bridge.recall"),
        ("{\\\"u64\\\":", "{\\\"u65\\\":"),
        ("{\\\"first.bias\\\":", "[\\\"first.bias\\\":"),
    ] {
        rewrite(from, to);
        let error = unwrap_error(optimizer.restore(1));
        assert!(matches!(reason(&error), EpochError::NotARecord { .. }), "{error}");
        assert_eq!(error.file(), epochs.path(1).join("optimizer.safetensors").to_str());
        rewrite(to, from);
    }
    optimizer.restore(1).unwrap();
}

/// An epoch needs all three records, also by its manifest.
#[test]
fn a_manifest_without_a_record() {
    for name in ["model", "optimizer", "scheduler"].map(|name| format!("{name}.safetensors")) {
        let (_dir, epochs) = saved(1);
        change_manifest(&epochs, |manifest| {
            let entry = manifest["files"].as_object_mut().unwrap().remove(&name).unwrap();
            manifest["files"]["notes.safetensors"] = entry;
        });
        fs::rename(epochs.path(1).join(&name), epochs.path(1).join("notes.safetensors")).unwrap();
        let error = refused(&epochs);
        let EpochError::NoRecord { name: missing, found } = reason(&error) else {
            panic!("{error}")
        };
        assert_eq!((missing, found.len()), (&name, 3));
        assert_eq!(error.file(), epochs.path(1).join("manifest.json").to_str());
    }
}

/// A model and an optimizer of different saves would not fit.
#[test]
fn an_epoch_that_is_replaced_between_two_records() {
    let (_dir, epochs) = saved(1);
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    model.restore(1).unwrap();
    Training::trained(3).save(&epochs.checkpointers_without_module(), 1);
    let error = unwrap_error(optimizer.restore(1));
    assert!(matches!(reason(&error), EpochError::Replaced), "{error}");
    // All records of the new one.
    model.restore(1).unwrap();
    optimizer.restore(1).unwrap();
    scheduler.restore(1).unwrap();
}

/// The manifest has a digest of the header of each file.
#[test]
fn the_files_of_an_epoch_are_not_edited() {
    let (dir, epochs) = saved(1);
    let before = files(&epochs, 1);
    let edit = |path: &Path| Edit::open(path)?.set_metadata([("license", "mit")]).apply();
    for name in before.iter().map(|(name, _)| name).filter(|name| name.ends_with(".safetensors")) {
        let path = epochs.path(1).join(name);
        let error = edit(&path).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InManifest { .. }), "{error}");
        let checkpoint = File::open(&path).unwrap();
        let rewrite = Rewrite::from_checkpoint(&checkpoint);
        let error = rewrite.save(&path, &SaveOptions::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InManifest { .. }), "{error}");
        // A copy is another file.
        let copy = dir.path().join(name);
        fs::copy(path, &copy).unwrap();
        edit(&copy).unwrap();
    }
    assert_eq!(files(&epochs, 1), before);
    assert_eq!(epochs.newest().unwrap(), Some(1));
}
