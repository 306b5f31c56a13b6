//! Recording digests: while saving, and in existing files.

use safetensors_testing::tensors::bytes_by;

use super::*;

/// A tensor of `len` bytes that gives `bytes` in pieces of this length.
fn in_pieces(bytes: Vec<u8>, len: usize, piece: usize) -> impl TensorSource {
    bytes_by(len, move |sink| bytes.chunks(piece).try_for_each(sink))
}

#[test]
fn digests_are_recorded_while_saving() {
    let (_directory, path) = place("model.safetensors");
    for align in [8, 4096] {
        let options = SaveOptions::new()
            .metadata([("format", "pt"), (KEY, "of some other data")])
            .align(align)
            .durable(false)
            .digests(true);
        let tensors = || {
            KNOWN.iter().zip([1 << 20, 1, 2, 3].into_iter().cycle()).map(|((len, _), piece)| {
                let piece = if *len < 10_000 { piece } else { 100_003 };
                (format!("\"{len}\""), in_pieces(pattern(*len), *len, piece))
            })
        };
        save(&path, tensors(), &options).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let files =
            digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)).unwrap();
        assert_eq!(files[0].checked.len(), KNOWN.len());
        assert_eq!(checkpoint.metadata()["format"], "pt");
        let record = TensorDigests::from_metadata(checkpoint.metadata()).unwrap().unwrap();
        for (len, xxh3) in KNOWN {
            assert_eq!(record.get(&format!("\"{len}\"")).unwrap().to_string(), xxh3);
        }
        // Every way to write gives the same bytes.
        let saved = fs::read(&path).unwrap();
        assert!(serialize(tensors(), &options).unwrap() == saved);
        let mut piped = Vec::new();
        write_to(&mut piped, tensors(), &options).unwrap();
        assert!(piped == saved);
    }
}

#[test]
fn a_file_without_tensors_records_that_there_are_none() {
    let (_directory, path) = place("model.safetensors");
    let options = SaveOptions::new().digests(true);
    save(&path, <[(&str, TensorBuf); 0]>::default(), &options).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().metadata()[KEY], "{}");
    verify(&path).unwrap();
    assert_eq!(
        serialize(<[(&str, TensorBuf); 0]>::default(), &options).unwrap(),
        fs::read(&path).unwrap()
    );
}

#[test]
fn digests_of_tensors_that_are_streamed_in_any_order() {
    let (_directory, path) = place("model.safetensors");
    let bytes = pattern(3_158_073);
    let names = ["in order", "backwards", "hole first", "whole", "after a failure", "empty"];
    let options = SaveOptions::new().durable(false).digests(true);
    let declared =
        names.map(|name| (name, Dtype::U8, [if name == "empty" { 0 } else { bytes.len() }]));
    let writer = StreamWriter::create(&path, declared, &options).unwrap();
    let whole = |bytes: &[u8]| in_pieces(bytes.to_vec(), 3_158_073, 100_000);

    let pieces = || bytes.chunks(70_001).enumerate().map(|(i, piece)| (i as u64 * 70_001, piece));
    for (_, piece) in pieces() {
        writer.tensor("in order").unwrap().append(piece).unwrap();
    }
    let backwards: Vec<_> = pieces().collect();
    std::thread::scope(|scope| {
        for some in backwards.chunks(10) {
            let tensor = writer.tensor("backwards").unwrap();
            scope.spawn(move || {
                some.iter()
                    .rev()
                    .for_each(|(offset, piece)| tensor.write_bytes_at(*offset, piece).unwrap())
            });
        }
    });
    let tensor = writer.tensor("hole first").unwrap();
    for range in [0..10, 20..3_158_073, 10..20] {
        tensor.write_bytes_at(range.start as u64, &bytes[range]).unwrap();
    }
    writer.tensor("whole").unwrap().write_from(&whole(&bytes)).unwrap();
    // First write other bytes. They are discarded, because they are too few.
    let tensor = writer.tensor("after a failure").unwrap();
    tensor.write_from(&whole(&[7; 1_234_567])).unwrap_err();
    tensor.write_from(&whole(&bytes)).unwrap();
    writer.finish().unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)).unwrap();
    let record = TensorDigests::from_metadata(checkpoint.metadata()).unwrap().unwrap();
    for name in names {
        let expected = if name == "empty" { Digest::compute(b"") } else { Digest::compute(&bytes) };
        assert_eq!(record.get(name).copied(), Some(expected), "{name}");
    }
}

#[test]
fn every_shard_of_a_save_records_its_own_tensors() {
    let directory = tempdir().unwrap();
    let names = ["a", "b", "c"];
    let options = ShardOptions::new()
        .max_shard_size(20.into())
        .save_options(SaveOptions::new().digests(true));
    let saved = save_sharded(
        directory.path(),
        names.map(|name| (name, u8_tensor(name.repeat(10).as_bytes()))),
        &options,
    );
    assert_eq!(saved.unwrap().files.len(), 2);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let files = digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)).unwrap();
    let checked: Vec<_> = files.iter().map(|file| file.checked.clone()).collect();
    assert_eq!(checked, [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn a_pipe_gets_nothing_when_a_source_fails_while_it_is_hashed() {
    let short = in_pieces(vec![1; 3], 4, 2);
    let mut piped = Vec::new();
    let error = refused!(
        write_to(&mut piped, [("w", short)], &SaveOptions::new().digests(true)),
        ErrorKind::SourceLength { expected: 4, found: 3 }
    );
    assert_eq!((error.tensor(), piped.len()), (Some("w"), 0));
}

#[test]
fn digests_are_recorded_in_a_file_that_exists() {
    let (_directory, path) = place("model.safetensors");
    let plain = SaveOptions::new().metadata([("format", "pt")]).align(4096);
    save(
        &path,
        [("a", u8_tensor(b"abc")), ("b", u8_tensor(b"def")), ("c", u8_tensor(b""))],
        &plain,
    )
    .unwrap();
    let data = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        ["a", "b", "c"]
            .map(|name| checkpoint.tensor(name).unwrap().read().unwrap().bytes().to_vec())
    };
    let before = data(&path);

    // The header has room for the digests.
    let edit = Edit::open(&path).unwrap().in_place(true);
    let recorded = edit.record_digests(&DigestOptions::new()).unwrap().apply();
    assert_eq!(recorded.unwrap(), Edited::InPlace);
    assert_eq!(record(&path, &DigestOptions::new()).unwrap(), Edited::Unchanged);
    let metadata = Checkpoint::open(&path).unwrap().metadata().clone();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["format", KEY]);
    let record = TensorDigests::from_metadata(&metadata).unwrap().unwrap();
    let found = record.iter().map(|(name, digest)| (name.as_str(), *digest));
    assert!(found.eq([
        ("a", Digest::compute(b"abc")),
        ("b", Digest::compute(b"def")),
        ("c", Digest::compute(b""))
    ]));
    verify(&path).unwrap();

    // Recording only the other digest leaves the first unchanged, right or wrong.
    flip(&path, offset_of(&path, "b", 0));
    assert!(verify(&path).is_err());
    let options = DigestOptions::new().tensors(false).sha256(true);
    let edit = Edit::open(&path).unwrap().durable(false);
    edit.record_digests(&options).unwrap().apply().unwrap();
    let error = verify(&path).unwrap_err();
    assert_eq!(error.tensor(), Some("b"));
    // Recording again computes the digests of the current data.
    super::record(&path, &DigestOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(
        digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)).unwrap()[0]
            .sha256
            .is_some()
    );
    flip(&path, offset_of(&path, "b", 0));
    assert_eq!(data(&path), before);
}

#[test]
fn digests_that_do_not_fit_into_the_header_make_a_new_file() {
    let (directory, path) = place("model.safetensors");
    let bytes = pattern(100_000);
    save(&path, [("w", u8_tensor(&bytes))], &SaveOptions::new()).unwrap();
    let edit = Edit::open(&path).unwrap().in_place(true);
    let recorded = edit.record_digests(&DigestOptions::new()).unwrap().apply();
    assert_eq!(recorded.unwrap(), Edited::Rewritten);
    assert_eq!(
        Checkpoint::open(&path).unwrap().tensor("w").unwrap().read().unwrap().bytes(),
        bytes
    );
    verify(&path).unwrap();
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}
