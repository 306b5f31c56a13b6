//! Where the manifest is that describes a file.

use safetensors_core::edit::Edited;

use super::{assert_refused, create, describe};
use crate::support::*;

/// The base of an epoch that is kept as a delta is two directories below the manifest.
#[test]
fn a_manifest_is_found_above_the_file_and_its_link() {
    let set =
        |path: &Path| Edit::open(path).and_then(|edit| edit.set_metadata([("k", "w")]).apply());
    let (directory, epoch) = place("epoch-4");
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
        write(&epoch, "manifest.json", text);
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
        make_fifo(&epoch.join("manifest.json"));
        must_not_hang(move || set(&path).unwrap());
    }
}
