//! Requests that `make` and `apply` refuse.

use std::fs;

use safetensors_core::ranks::RankRules;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind as CoreKind, Limits, Rewrite, SaveOptions, ShardOptions,
};
use safetensors_delta::{Chain, ChecksumFormat, Delta, Encoding, Options, make_linked};

use crate::support::{INDEX, Scratch, Tensors, bytes, files, quick, read};

fn base() -> Tensors {
    Tensors::from([bytes("a", [1, 2]), bytes("b", [3, 4])])
}

#[test]
fn other_readers_get_no_delta_of_other_tensors_and_all_differences_are_listed() {
    let scratch = Scratch::new(&base());
    let readers = [quick().for_slime(), quick().for_modelexpress()];
    let mut new = base();
    new.remove("a");
    new.insert("c".into(), (Dtype::U8, vec![1], vec![1]));
    new.insert("b".into(), (Dtype::I8, vec![2], vec![3, 4]));
    for reader in &readers {
        let error = scratch.make("delta", &new, reader).unwrap_err();
        let message = error.to_string();
        for part in ["missing: \"a\"", "not needed: \"c\"", "\"b\" should have dtype U8, found I8"]
        {
            assert!(message.contains(part), "{message}");
        }
    }
    new = base();
    new.insert("b".into(), (Dtype::U8, vec![1, 2], vec![3, 4]));
    for reader in &readers {
        let error = scratch.make("delta", &new, reader).unwrap_err();
        assert!(error.to_string().contains("should have shape [2], found [1, 2]"), "{error}");
        let other = reader.clone().metadata([("format", "np")]);
        let error = scratch.make("delta", &base(), &other).unwrap_err();
        assert!(error.to_string().contains("needs the metadata of the base, found"), "{error}");
    }
    assert!(!scratch.path("delta").exists());
}

#[test]
fn nothing_is_replaced_unasked_and_nothing_else_than_a_delta_by_a_delta() {
    let scratch = Scratch::new(&base());
    let new = Tensors::from([bytes("a", [1, 2]), bytes("b", [3, 5])]);
    let make = |name, options: &Options| scratch.make(name, &new, options);
    let is = |made: Result<Delta, Error>, expected: fn(&CoreKind) -> bool| {
        let error = made.unwrap_err();
        assert!(expected(error.kind()), "{error}");
    };
    let replacing = quick().overwrite(true);
    make("delta", &quick()).unwrap();
    is(make("delta", &quick()), |kind| matches!(kind, CoreKind::FileExists));
    make("delta", &replacing).unwrap();
    // A damaged delta is one, too.
    fs::write(scratch.path("delta").join(crate::support::SHARD), "x").unwrap();
    make("delta", &replacing).unwrap();
    is(make("base", &replacing), |kind| matches!(kind, CoreKind::NotADelta));
    fs::create_dir(scratch.path("home")).unwrap();
    make("home", &quick()).unwrap();
    fs::remove_dir_all(scratch.path("home")).unwrap();
    fs::create_dir(scratch.path("home")).unwrap();
    fs::write(scratch.path("home/thesis.tex"), "x").unwrap();
    make("home", &quick()).unwrap();
    is(make("home/thesis.tex", &replacing), |kind| matches!(kind, CoreKind::Io(_)));
    assert_eq!(fs::read(scratch.path("home/thesis.tex")).unwrap(), b"x");

    // A checkpoint does not take the place of a delta.
    let chain =
        || safetensors_delta::Chain::new([Delta::open(scratch.path("delta")).unwrap()]).unwrap();
    for (name, options) in [("home", &replacing), ("delta", &replacing), ("base", &quick())] {
        let before = files(&scratch.path(name));
        chain().apply(&scratch.base, scratch.path(name), options).unwrap_err();
        assert_eq!(files(&scratch.path(name)), before);
    }
    assert_eq!(read(&scratch.path("base")), base());
}

#[test]
fn a_delta_for_a_reader_is_one_that_it_takes() {
    let scratch = Scratch::new(&base());
    let made = |options: Options| scratch.make("delta", &base(), &options.overwrite(true));
    let refused = |options: Options| made(options).unwrap_err().to_string();
    let slime = quick().for_slime();
    assert_eq!(made(slime.clone()).unwrap().checksum_format(), ChecksumFormat::Xxh3);
    assert!(made(slime.clone().checksums(ChecksumFormat::Adler32)).is_ok());
    let message = refused(slime.versions("000001", "latest"));
    assert!(message.contains("slime needs decimal versions, found \"latest\""), "{message}");
    let express = quick().for_modelexpress();
    assert_eq!(made(express.clone()).unwrap().checksum_format(), ChecksumFormat::Adler32);
    assert!(made(express.clone().versions("a", "b")).is_ok());
    let message = refused(express.clone().encoding(Encoding::Overwrite));
    assert!(message.contains("ModelExpress needs the encoding xor"), "{message}");
    assert!(refused(express.checksums(ChecksumFormat::Blake3)).contains("adler32"));
}

#[test]
fn a_delta_that_no_reader_would_open_is_not_made() {
    let scratch = Scratch::new(&base());
    let limits = Limits::default();
    let mut deep = base();
    deep.insert("deep".into(), (Dtype::U8, vec![1; limits.ndim + 1], vec![1]));
    let entries = (0..=limits.metadata_entries).map(|number| (number.to_string(), "v"));
    let before = files(scratch.directory.path());
    for (new, options) in [(deep, quick()), (base(), quick().metadata(entries))] {
        let error = scratch.make("delta", &new, &options).unwrap_err();
        let (kind, file) = (error.kind(), error.file().unwrap());
        assert!(
            matches!(kind, CoreKind::TooManyDimensions { .. } | CoreKind::BadIndex { .. }),
            "{error}"
        );
        assert!(std::path::Path::new(file).starts_with(scratch.path("delta")), "{error}");
        assert_eq!(files(scratch.directory.path()), before);
    }
}

/// slime's positions of 32 bits wrap silently.
#[cfg(target_os = "linux")]
#[test]
fn positions_that_do_not_fit_are_refused_before_anything_is_read() {
    use crate::support::Parts;
    use safetensors_core::Checkpoint;
    use safetensors_delta::{Chain, ErrorKind};

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large.safetensors");
    let tensors = [("w".to_owned(), Dtype::U8, vec![1 << 32])];
    safetensors_testing::files::write_hole(&file, tensors);
    let large = Checkpoint::open(&file).unwrap();
    let tensors = large.tensors().map(|tensor| (tensor.name(), tensor));
    let options = quick().encoding(Encoding::Overwrite);
    let made = safetensors_delta::make(&large, tensors, directory.path().join("delta"), &options);
    let error = made.unwrap_err();
    assert_eq!(error.tensor(), Some("w"));
    assert!(
        matches!(error.other(), Some(ErrorKind::TooLargeToOverwrite { found }) if *found == 1 << 32)
    );
    // Nor is such a delta of another writer applied.
    let scratch = Scratch::new(&base());
    let frame = crate::support::frame(b"\x01\0\0\0\x07\0\0\0\x09");
    scratch.write_delta("delta", &Parts::new("overwrite", &[("w", &frame, &[])]));
    let chain = Chain::new([Delta::open(scratch.path("delta")).unwrap()]).unwrap();
    let error = chain.verify(&large, &quick().progress(|_| panic!("it is read"))).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::TooLargeToOverwrite { .. })), "{error}");
    assert!(error.file().unwrap().ends_with(crate::support::SHARD));
}

/// The result would have the names of files that are nowhere.
#[test]
fn a_base_in_parts_is_refused() {
    let scratch = Scratch::new(&base());
    let rewrite = Rewrite::from_checkpoint(&scratch.base);
    let rules = RankRules::new().parse_rule("*=uneven:0").unwrap();
    let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new()).unwrap();
    rewrite.save_ranks(scratch.path("parts"), &plan, "1", &ShardOptions::new()).unwrap();
    scratch
        .make("delta", &Tensors::from([bytes("a", [1, 2]), bytes("b", [3, 5])]), &quick())
        .unwrap();
    let joined = Checkpoint::open(scratch.path("parts")).unwrap();
    let chain = Chain::new([Delta::open(scratch.path("delta")).unwrap()]).unwrap();
    let error = chain.apply(&joined, scratch.path("out"), &quick()).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Ranks { .. }), "{error}");
    assert!(!scratch.path("out").exists());
    let index = scratch.path("parts").join(INDEX);
    let error =
        make_linked(index, scratch.path("base"), scratch.path("linked"), &quick()).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Ranks { .. }), "{error}");
    assert!(!scratch.path("linked").exists());
}
