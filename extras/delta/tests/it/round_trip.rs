//! A delta applied to its base gives the new checkpoint, bit for bit.

use std::fs;

use proptest::prelude::*;
use safetensors_core::checkpoint::store::{MemoryStore, Store};
use safetensors_core::digest::{self, DigestOptions};
use safetensors_core::edit::Edit;
use safetensors_core::{Checkpoint, Dtype, Limits, SaveOptions, TensorView, save};
use safetensors_delta::{Chain, ChecksumFormat, Delta, Encoding, make};

use crate::support::{INDEX, SHARD, Scratch, Tensors, bytes, files, quick, read, write};

const ENCODINGS: [Encoding; 2] = [Encoding::Xor, Encoding::Overwrite];

/// Pseudo-random bytes.
fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn every_dtype_and_size_comes_back() {
    let mut old = Tensors::new();
    for dtype in Dtype::ALL.iter().filter(|dtype| **dtype != Dtype::BOOL) {
        let len = 64 * dtype.bits() as usize / 8;
        old.insert(format!("{dtype}"), (*dtype, vec![8, 8], noise(len, u64::from(dtype.bits()))));
    }
    old.extend([bytes("empty", []), bytes("one", [7]), bytes("long", noise(700_001, 3))]);
    old.insert("BOOL".into(), (Dtype::BOOL, vec![2], vec![0, 1]));
    old.insert("scalar".into(), (Dtype::F64, vec![], noise(8, 5)));
    let mut new = old.clone();
    // A quiet NaN becomes a signalling one, and 0 becomes -0.
    new.get_mut("F32").unwrap().2[..8].copy_from_slice(&[1, 0, 0x80, 0x7f, 0, 0, 0, 0x80]);
    for (name, (_, _, bytes)) in &mut new {
        if let Some(last) = bytes.last_mut().filter(|_| name != "U8") {
            *last ^= if name == "BOOL" { 1 } else { 0x80 };
        }
    }
    new.get_mut("long").unwrap().2[300_000..400_000].fill(9);
    let scratch = Scratch::new(&old);
    for encoding in ENCODINGS {
        let name = encoding.to_string();
        let delta = scratch.make(&name, &new, &quick().encoding(encoding)).unwrap();
        delta.verify().unwrap();
        let changed: Vec<_> = delta.tensors().map(|tensor| tensor.name().to_owned()).collect();
        assert_eq!(changed.len(), old.len() - 2, "{changed:?}");
        assert!(!changed.contains(&"empty".into()) && !changed.contains(&"U8".into()));
        Chain::new([delta]).unwrap().verify(&scratch.base, &quick()).unwrap();
        assert_eq!(scratch.apply(&[&name]).unwrap(), new);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_change_comes_back(
        old in proptest::collection::vec(any::<u8>(), 0..600),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..40),
        overwrite in any::<bool>(),
    ) {
        let mut new = old.clone();
        for (at, value) in changes {
            let at = usize::from(at) % new.len().max(1);
            new.get_mut(at).into_iter().for_each(|byte| *byte = value);
        }
        let tensors = |w: &[u8]| Tensors::from([bytes("w", w), bytes("other", [1, 2])]);
        let scratch = Scratch::new(&tensors(&old));
        let options = quick().encoding(ENCODINGS[usize::from(overwrite)]);
        let delta = scratch.make("delta", &tensors(&new), &options).unwrap();
        prop_assert_eq!(delta.tensors().count(), usize::from(old != new));
        prop_assert_eq!(scratch.apply(&["delta"]).unwrap(), tensors(&new));
    }
}

#[test]
fn both_checkpoints_may_be_divided_in_their_own_ways() {
    let tensors = |seed| {
        (0..9).map(|i| bytes(&format!("w{i}"), noise(100 + i, seed + i as u64 % 4))).collect()
    };
    let (old, new): (Tensors, Tensors) = (tensors(0), tensors(1));
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let base = write(&path("base"), &old, 250);
    fs::write(path("base").join("config.json"), "{}").unwrap();
    fs::create_dir(path("base").join("tokenizer")).unwrap();
    fs::write(path("base").join("tokenizer/vocab.txt"), "a b").unwrap();
    let newer = write(&path("new"), &new, 900);
    let tensors = newer.tensors().map(|tensor| (tensor.name(), tensor));
    let delta = make(&base, tensors, path("delta"), &quick()).unwrap();
    Chain::new([delta]).unwrap().apply(&base, path("applied"), &quick()).unwrap();
    assert_eq!(read(&path("applied")), new);
    // The files come from the base, and so do the files next to them.
    let names = |name: &str| -> Vec<_> {
        files(&path(name))
            .into_keys()
            .map(|file| file.strip_prefix(path(name)).unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("applied"), names("base"));
    for same in ["config.json", "tokenizer/vocab.txt", INDEX] {
        let read = |name: &str| fs::read(path(name).join(same)).unwrap();
        assert_eq!(read("applied"), read("base"), "{same}");
    }
}

#[test]
fn a_delta_without_changes_still_names_its_base() {
    let old = Tensors::from([bytes("w", [1, 2, 3])]);
    let scratch = Scratch::new(&old);
    let delta = scratch.make("delta", &old, &quick()).unwrap();
    assert_eq!(delta.tensors().count(), 0);
    assert!(delta.base_digest().is_some() && delta.base_digest() == delta.result_digest());
    assert_eq!(files(&scratch.path("delta")).len(), 1);
    assert_eq!(scratch.apply(&["delta"]).unwrap(), old);
    let other = Scratch::new(&Tensors::from([bytes("w", [1, 2, 4])]));
    let error = Chain::new([delta]).unwrap().verify(&other.base, &quick()).unwrap_err();
    assert!(error.to_string().contains("was made of another base"), "{error}");
}

#[test]
fn metadata_stays_and_recorded_digests_follow() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let file = path("base.safetensors");
    let options = SaveOptions::new().metadata([("format", "pt"), ("tied", "w")]).digests(true);
    save(&file, [("w", TensorView::from_slice(&[2], &[1_u8, 2]).unwrap())], &options).unwrap();
    Edit::open(&file).unwrap().record_digests(&DigestOptions::new()).unwrap().apply().unwrap();
    let base = Checkpoint::open(&file).unwrap();
    let new = [("w", TensorView::from_slice(&[2], &[1_u8, 3]).unwrap())];
    let delta = make(&base, new, path("delta"), &quick()).unwrap();
    Chain::new([delta]).unwrap().apply(&base, path("applied"), &quick()).unwrap();
    let applied = Checkpoint::open(path("applied")).unwrap();
    assert_eq!(applied.aliases().map(|(alias, _)| alias).collect::<Vec<_>>(), ["tied"]);
    assert_eq!(applied.metadata()["format"], "pt");
    let checked = digest::verify(&applied, &DigestOptions::new()).unwrap();
    assert_eq!(checked[0].checked.len(), 1);
}

#[test]
fn a_delta_in_another_store_is_applied() {
    let (old, new) = (Tensors::from([bytes("w", [1, 2])]), Tensors::from([bytes("w", [1, 9])]));
    let scratch = Scratch::new(&old);
    scratch.make("delta", &new, &quick().checksums(ChecksumFormat::Xxh3)).unwrap();
    let file = |name: &str| {
        (format!("weights/{name}"), fs::read(scratch.path("delta").join(name)).unwrap())
    };
    let store = MemoryStore::from_iter([file(INDEX), file(SHARD)]);
    assert!(store.kind("weights".as_ref()).unwrap().is_some());
    let delta = Delta::open_in(store, "weights", &Limits::default()).unwrap();
    let chain = Chain::new([delta]).unwrap();
    chain.apply(&scratch.base, scratch.path("applied"), &quick()).unwrap();
    assert_eq!(read(&scratch.path("applied")), new);
}
