//! The notes of an edit and a plan about the records that change.

use safetensors_core::digest::{KEY, Note};

use super::{SHA256, assert_refused, create, describe, digests, taken};
use crate::support::*;

#[test]
fn an_edit_reports_its_side_effects() {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    let edit = || Edit::open_read_only(&path).unwrap();
    assert_eq!(edit().set_metadata([("k", "w")]).notes().unwrap(), []);
    let removed = || Note::Removed { key: SHA256 };
    assert_eq!(edit().remove(["a"]).notes().unwrap(), [removed()]);
    // The caller knows the changes that it makes itself.
    assert_eq!(edit().remove(["a"]).remove_metadata([SHA256]).notes().unwrap(), []);
    assert_eq!(edit().remove(["a"]).set_metadata([(SHA256, "0x")]).notes().unwrap(), []);
    let recorded = edit().remove(["a"]).record_digests(&digests(true)).unwrap();
    assert_eq!(recorded.notes().unwrap(), []);

    for name in ["model.sig", "model.safetensors.asc", "config.json.sig", "config.json", "sig"] {
        write(directory.path(), name, "");
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
fn a_plan_lists_side_effects_of_a_rewrite() {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    write(directory.path(), "model.sig", "");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rewrite = Rewrite::from_checkpoint(&checkpoint);
    let notes = |options: &SaveOptions, to: &Path| rewrite.plan(options).unwrap().notes(to);
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
    assert_eq!(sharded.notes(directory.path()), [sha256, tensors, signature]);
    // The plan shows the metadata that is written.
    assert!(!rewrite.plan(&taken(&path).unwrap().1).unwrap().metadata().contains_key(KEY));
    // It refuses the same as the save.
    describe(&path, directory.path());
    assert_refused("plan", &sharded.check_destination(directory.path()).unwrap_err());
}
