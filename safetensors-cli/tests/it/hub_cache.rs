//! Files in a cache of the Hub, which other programs read: changed only with `--force`.
#![cfg(unix)]

use std::os::unix::fs::symlink;

use crate::fixtures::*;

#[test]
fn nothing_changes_a_blob_without_force() {
    let dir = temp_dir();
    let snapshot = "hub/models--o--n/snapshots/0123456789abcdef0123456789abcdef01234567";
    let (blobs, snapshot) = (dir.at("hub/models--o--n/blobs"), dir.at(snapshot));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::rename(small_file(dir.path(), "x"), blobs.join("etag")).unwrap();
    symlink("../../blobs/etag", snapshot.join("model.safetensors")).unwrap();
    symlink(&snapshot, dir.at("model")).unwrap();
    let before = fs::read(blobs.join("etag")).unwrap();
    let copy = "; change a copy, made by `cp -L` or `convert`, or give --force\n";
    let other = "; choose another OUT; --force replaces it\n";
    let file = "model/model.safetensors";
    let title = ["--architecture", "a", "--implementation", "i", "--title", "t"];
    for (args, remedy) in [
        (&["metadata", "set", file, "a=b"][..], copy),
        (&["metadata", "set", "--dry-run", file, "a=b"], copy),
        (&["metadata", "clear", file], copy),
        (&[&["metadata", "modelspec", "init", file], &title[..]].concat(), copy),
        (&["digest", "--record", "model"], copy),
        (&["convert", file, file, "--dtype", "f16"], other),
        (&["convert", "model", "model", "--dtype", "f16"], other),
        (&["convert", "model", file, "--dry-run"], other),
    ] {
        let told =
            contains(format!("error: {file}: the file is in a cache")).and(ends_with(remedy));
        dir.run(args).code(1).stderr(told);
        assert_eq!(fs::read(blobs.join("etag")).unwrap(), before, "{args:?}");
    }
    dir.run("convert model out.safetensors").success();
    dir.run(&["metadata", "set", "--force", file, "a=b"]).success();
    dir.run("digest --record --force model").success();
    dir.run(&["convert", file, file, "--dtype", "f16", "--force"]).success();
    assert!(fs::symlink_metadata(snapshot.join("model.safetensors")).unwrap().is_symlink());
    dir.run(&["digest", "--force", file]).code(2);
}
