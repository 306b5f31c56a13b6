//! Files that were changed, added, removed or renamed, and files that may be signed.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use safetensors_core::ErrorKind as CoreKind;
use safetensors_sign::{Error, ErrorKind, Report, Signer, Verifier};

use super::{MODEL, differences, fixture, kind, model, text};

fn signer() -> Signer {
    Signer::parse(&text("p256.pem")).unwrap()
}

fn verifier() -> Verifier {
    Verifier::with_key(&text("p256.pub")).unwrap()
}

fn verify(model: &Path) -> Result<Report, Error> {
    verifier().verify(model, fixture("p256.sig"))
}

#[test]
fn changed_added_and_missing_files_are_named() {
    let dir = model();
    let at = |name: &str| dir.path().join(name);
    verify(dir.path()).unwrap();

    // Unchanged length.
    fs::write(at("a/c"), "SLASH").unwrap();
    fs::write(at("new.bin"), "new").unwrap();
    fs::remove_file(at("config.json")).unwrap();
    fs::rename(at("a.b"), at("moved")).unwrap();
    let error = verify(dir.path()).unwrap_err();
    assert_eq!(error.file(), dir.path().to_str());
    let message = error.to_string();
    assert!(message.ends_with(
        r#"the files differ from the signed ones; changed: "a/c"; missing: "config.json"; unsigned: "new.bin"; renamed: "a.b" to "moved""#
    ), "{message}");
    let report = differences(Err(error));
    assert_eq!(report.changed, ["a/c"]);
    assert_eq!(report.missing, ["config.json"]);
    assert_eq!(report.unsigned, ["new.bin"]);
    assert_eq!(report.renamed, [("a.b".to_owned(), "moved".to_owned())]);

    // Unsigned files can be allowed; the other differences cannot.
    let lenient = verifier().ignore_unsigned_files(true).ignore("a").ignore("config.json");
    let report = differences(lenient.verify(dir.path(), fixture("p256.sig")));
    assert_eq!(report.changed, ["a/c"]);
    assert_eq!(report.missing, ["config.json"]);
}

#[test]
fn two_files_that_changed_places_are_changed() {
    let dir = model();
    fs::write(dir.path().join("a.b"), MODEL[1].1).unwrap();
    fs::write(dir.path().join("a/c"), MODEL[0].1).unwrap();
    assert_eq!(differences(verify(dir.path())).changed, ["a.b", "a/c"]);
}

#[test]
fn letters_of_another_case_are_another_name() {
    let dir = model();
    // Not renamed: wine would keep the letters.
    fs::remove_file(dir.path().join("a.b")).unwrap();
    fs::write(dir.path().join("A.b"), "dot").unwrap();
    let renamed = [("a.b".to_owned(), "A.b".to_owned())];
    assert_eq!(differences(verify(dir.path())).renamed, renamed);
}

#[test]
fn unsigned_files_are_allowed_only_by_option() {
    let dir = model();
    for name in [".git/config", ".github/a", ".gitignore", "later/x", "a/d"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let unsigned = |verifier: Verifier, signature: &str| {
        differences(verifier.verify(dir.path(), fixture(signature))).unsigned.to_vec()
    };
    assert_eq!(unsigned(verifier(), "p256.sig"), ["a/d", "later/x"]);
    assert_eq!(unsigned(verifier().ignore("later/"), "p256.sig"), ["a/d"]);
    let both = verifier().ignore("later").ignore("a").verify(dir.path(), fixture("p256.sig"));
    assert_eq!(both.unwrap().files, MODEL.len());
    let all = verifier().ignore_unsigned_files(true).verify(dir.path(), fixture("p256.sig"));
    assert_eq!(all.unwrap().unsigned, ["a/d", "later/x"]);
    // The signer has omitted `a` and `later`, and the report lists both.
    let report = verifier().verify(dir.path(), fixture("ignoring.sig")).unwrap();
    assert_eq!(report.files, MODEL.len() - 1);
    assert_eq!(report.left_out, [("a".to_owned(), 2), ("later".to_owned(), 1)]);
    assert!(report.unsigned.is_empty());
    let less = verifier().ignore("a").verify(dir.path(), fixture("ignoring.sig")).unwrap();
    assert_eq!(less.left_out, [("later".to_owned(), 1)]);
    // Only at the top.
    fs::create_dir(dir.path().join("later/.git")).unwrap();
    fs::write(dir.path().join("later/.git/x"), "").unwrap();
    assert_eq!(unsigned(verifier().ignore("a").ignore("later/x"), "p256.sig"), ["later/.git/x"]);
}

#[test]
fn one_file_is_a_model_too() {
    let dir = model();
    let file = dir.path().join("model.safetensors");
    let report = verifier().verify(&file, fixture("single.sig")).unwrap();
    assert_eq!(report.files, 1);
    let own = dir.path().join("own.sig");
    signer().sign(&file, &own).unwrap();
    verifier().verify(&file, &own).unwrap();
    fs::write(&file, "other").unwrap();
    assert_eq!(differences(verifier().verify(&file, &own)).changed, ["."]);
    // The signature of a directory is none of a file.
    let report = differences(verifier().verify(&file, fixture("p256.sig")));
    assert_eq!(report.missing.len(), MODEL.len());
}

#[test]
fn a_signature_is_written_atomically_and_replaces_nothing() {
    let dir = model();
    let signature = dir.path().join("model.sig");
    signer().sign(dir.path(), &signature).unwrap();
    let first = fs::read(&signature).unwrap();
    fs::write(dir.path().join("later"), "").unwrap();
    let error = signer().sign(dir.path(), &signature).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::FileExists), "{error}");
    assert_eq!(fs::read(&signature).unwrap(), first);
    let report = signer().overwrite(true).sign(dir.path(), &signature).unwrap();
    assert_eq!(report.files, MODEL.len() + 1);
    verifier().verify(dir.path(), &signature).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), MODEL.len() + 2, "{names:?}");
}

#[test]
fn only_a_signature_is_replaced() {
    let dir = model();
    let at = |name: &str| dir.path().join(name);
    let outside = tempfile::tempdir().unwrap();
    let own = outside.path().join("own.sig");
    signer().sign(dir.path(), &own).unwrap();
    fs::copy(fixture("p256.pem"), outside.path().join("key.pem")).unwrap();
    fs::copy(&own, at("signed.sig")).unwrap();
    let mut paths = vec![at("model.safetensors"), at("empty"), outside.path().join("key.pem")];
    paths.push(at("a"));
    #[cfg(unix)]
    for (name, target) in [("link", &own), ("notes", &at("config.json")), ("none", &at("x"))] {
        let link = outside.path().join(name);
        std::os::unix::fs::symlink(target, &link).unwrap();
        paths.push(link);
    }
    let refused = |model: &Path, path: &Path| {
        let before = fs::read(path).ok();
        let error = signer().overwrite(true).sign(model, path).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::NotASignature), "{error}");
        assert_eq!(error.file().map(Path::new), Some(path));
        assert_eq!(fs::read(path).ok(), before, "{}", path.display());
    };
    paths.iter().for_each(|path| refused(dir.path(), path));
    assert!(!at("x").exists());
    // A signature that is the model itself.
    refused(&at("signed.sig"), &at("signed.sig"));
    signer().overwrite(true).sign(dir.path(), &own).unwrap();
    assert_eq!(verifier().verify(dir.path(), &own).unwrap().files, MODEL.len() + 1);
}

#[test]
fn the_text_of_a_key_is_no_path() {
    let (dir, pem) = (model(), text("p256.pem"));
    for error in [
        signer().sign(dir.path(), &pem).unwrap_err(),
        signer().sign(&pem, dir.path().join("model.sig")).unwrap_err(),
        verifier().verify(dir.path(), &pem).unwrap_err(),
    ] {
        assert!(matches!(kind(&error), ErrorKind::BadKey { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains(pem.lines().nth(1).unwrap()));
    }
}

#[test]
fn a_directory_that_changes_is_not_signed() {
    let dir = model();
    let signature = dir.path().join("model.sig");
    let late = dir.path().join("late");
    let add = late.clone();
    let changing = signer().progress(move |_, _| {
        fs::write(&add, "late").unwrap();
        ControlFlow::Continue(())
    });
    let error = changing.sign(dir.path(), &signature).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::ChangedMeanwhile), "{error}");
    assert_eq!(error.file(), late.to_str());
    assert!(!signature.exists());

    // Files that a save leaves for a moment, or a killed one for longer.
    for name in [
        ".model.safetensors.aB3dE6.tmp",
        ".sub.aB3dE6.tmp/new/model.safetensors",
        "a/.model.safetensors.index.json.step-1.ranks/part",
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let error = signer().sign(dir.path(), &signature).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::Unfinished), "{name}: {error}");
        assert_eq!(error.file().map(Path::new), Some(&*path));
        fs::remove_file(&path).unwrap();
    }
}

/// The next signature would name the file of a lock, which is gone when it is in place.
#[test]
fn leftovers_of_a_killed_signature_are_removed_and_not_signed() {
    let dir = model();
    let signature = dir.path().join("model.sig");
    let left = [".safetensors.lock", ".model.sig.aB3dE6.tmp"].map(|name| dir.path().join(name));
    left.iter().for_each(|path| fs::write(path, "").unwrap());
    signer().sign(dir.path(), &signature).unwrap();
    assert!(!left.iter().any(|path| path.exists()));
    verifier().verify(dir.path(), &signature).unwrap();

    // A save may hold the lock of a directory in the model.
    let lock = dir.path().join("a/.safetensors.lock");
    fs::write(&lock, "").unwrap();
    let error = signer().overwrite(true).sign(dir.path(), &signature).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::Unfinished), "{error}");
    assert_eq!(error.file().map(Path::new), Some(&*lock));
}

#[test]
fn progress_counts_all_bytes_and_can_cancel() {
    let dir = model();
    let bytes = MODEL.iter().map(|(_, it)| it.len() as u64).sum::<u64>();
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let counting = verifier().progress(move |done, total| {
        assert_eq!(total, bytes);
        seen.fetch_max(done, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    counting.verify(dir.path(), fixture("p256.sig")).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), bytes);
    let cancelling = verifier().progress(|_, _| ControlFlow::Break(()));
    let error = cancelling.verify(dir.path(), fixture("p256.sig")).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Cancelled), "{error}");
}

#[cfg(unix)]
#[test]
fn links_are_followed_only_if_allowed() {
    use std::os::unix::fs::symlink;

    let dir = model();
    let at = |name: &str| dir.path().join(name);
    // A signed file that is now a link with the same content.
    let outside = tempfile::tempdir().unwrap();
    fs::rename(at("a.b"), outside.path().join("blob")).unwrap();
    symlink(outside.path().join("blob"), at("a.b")).unwrap();
    for lenient in [false, true] {
        let error =
            verifier().ignore_unsigned_files(lenient).verify(dir.path(), fixture("p256.sig"));
        let error = error.unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::Link), "{error}");
        assert_eq!(error.file(), at("a.b").to_str());
    }
    let report = verifier().allow_symlinks(true).verify(dir.path(), fixture("p256.sig")).unwrap();
    assert_eq!(report.links_outside, ["a.b"]);
    assert!(signer().sign(dir.path(), at("model.sig")).is_err());
    let signed = signer().allow_symlinks(true).sign(dir.path(), at("model.sig")).unwrap();
    assert_eq!(signed.links_outside, ["a.b"]);
    fs::remove_file(at("model.sig")).unwrap();

    symlink("a", at("linked")).unwrap();
    let error = signer().allow_symlinks(true).sign(dir.path(), at("model.sig")).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::LinkToDirectory), "{error}");
    fs::remove_file(at("linked")).unwrap();
    symlink("absent", at("linked")).unwrap();
    let error = signer().allow_symlinks(true).sign(dir.path(), at("model.sig")).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Io(_)), "{error}");
    let lenient = verifier().allow_symlinks(true).ignore_unsigned_files(true);
    lenient.verify(dir.path(), fixture("p256.sig")).unwrap();
}

#[cfg(unix)]
#[test]
fn other_than_files_are_refused() {
    use std::os::unix::ffi::OsStrExt as _;

    let dir = model();
    let signature = dir.path().join("model.sig");
    let socket = dir.path().join("socket");
    let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = signer().sign(dir.path(), &signature).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::SpecialFile), "{error}");
    let error = verify(dir.path()).unwrap_err();
    assert_eq!(error.file(), socket.to_str());
    signer().ignore("socket").sign(dir.path(), &signature).unwrap();
    fs::remove_file(&socket).unwrap();

    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    for error in [
        signer().overwrite(true).sign(dir.path(), &signature).unwrap_err(),
        verifier().verify(dir.path(), &signature).unwrap_err(),
    ] {
        assert!(matches!(kind(&error), ErrorKind::NameNotUtf8), "{error}");
    }
    verifier().ignore_unsigned_files(true).verify(dir.path(), &signature).unwrap();
}

#[test]
fn paths_to_leave_out_are_plain() {
    let dir = model();
    for path in ["../x", "/x", "", ".", "a//b"] {
        let error = signer().ignore(path).sign(dir.path(), dir.path().join("s")).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::UnsafeName { .. }), "{path}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn a_blob_of_the_hub_is_not_replaced() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--a--b/snapshots").join("0".repeat(40));
    let blobs = cache.path().join("models--a--b/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("1"), "old").unwrap();
    for name in ["model.sig", "config.json"] {
        std::os::unix::fs::symlink("../../blobs/1", snapshot.join(name)).unwrap();
    }
    let signer = signer().allow_symlinks(true);
    let error = signer.sign(&snapshot, snapshot.join("model.sig")).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::FileExists), "{error}");
    assert_eq!(fs::read(blobs.join("1")).unwrap(), b"old");
    // A new file may be there, as for every command.
    let signed = signer.sign(&snapshot, snapshot.join("new.sig")).unwrap();
    assert_eq!(signed.files, 2);
    let verifier = verifier().allow_symlinks(true);
    assert_eq!(verifier.verify(&snapshot, snapshot.join("new.sig")).unwrap().files, 2);
}
