//! The limits of reading, and that saving keeps to them.

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::error::IndexProblem;
use safetensors_core::header::Header;
use safetensors_core::save::StreamWriter;

use crate::support::*;

fn header_of_ndim(ndim: usize) -> String {
    let dims = vec!["1"; ndim].join(",");
    format!(r#"{{"a":{{"dtype":"U8","shape":[{dims}],"data_offsets":[0,1]}}}}"#)
}

fn header_with_metadata(entries: usize) -> String {
    let entries: Vec<_> = (0..entries).map(|i| format!(r#""{i}":"""#)).collect();
    format!(r#"{{"__metadata__":{{{}}}}}"#, entries.join(","))
}

fn parse(header: &str, limits: &Limits) -> Result<Header, Error> {
    Header::parse_json(header.as_bytes(), limits)
}

#[test]
fn ndim() {
    let limits = Limits::default();
    assert_eq!(limits.ndim, 1_024);
    assert!(parse(&header_of_ndim(1_024), &limits).is_ok());
    // The fields in the order of the reference, which the fast path reads, and in another order.
    let reordered = header_of_ndim(1_025).replace(r#""dtype":"U8","#, "");
    let reordered = reordered.replace("[0,1]", r#"[0,1],"dtype":"U8""#);
    for header in [header_of_ndim(1_025), reordered] {
        let error =
            refused!(parse(&header, &limits), ErrorKind::TooManyDimensions { limit: 1_024 });
        assert_eq!(error.tensor(), Some("a"));
        assert_eq!(
            error.to_string(),
            r#"tensor "a": the shape has more dimensions than the limit of 1024"#
        );
    }
    let mut limits = limits;
    for ndim in [0, 1, 2, 5_000] {
        limits.ndim = ndim;
        assert!(parse(&header_of_ndim(ndim), &limits).is_ok(), "{ndim}");
        assert!(parse(&header_of_ndim(ndim + 1), &limits).is_err(), "{ndim}");
    }
}

#[test]
fn metadata_entries() {
    let limits = Limits::default();
    assert_eq!(limits.metadata_entries, 100_000);
    assert_eq!(parse(&header_with_metadata(100_000), &limits).unwrap().metadata().len(), 100_000);
    let error = refused!(
        parse(&header_with_metadata(100_001), &limits),
        ErrorKind::TooManyMetadataEntries { limit: 100_000 }
    );
    assert_eq!(error.to_string(), "__metadata__ has more entries than the limit of 100000");
    let mut limits = limits;
    limits.metadata_entries = 0;
    assert!(parse(&header_with_metadata(0), &limits).is_ok());
    assert!(parse(&header_with_metadata(1), &limits).is_err());
}

#[test]
fn entries_and_bytes_of_an_index() {
    let directory = tempdir().unwrap();
    write(directory.path(), "s.safetensors", file("{}", 0));
    let open = |index: String, limits: &Limits| {
        let path = write(directory.path(), "model.safetensors.index.json", index);
        Checkpoint::open_in(LocalStore, &path, limits).unwrap_err()
    };
    let mut limits = Limits::default();
    assert_eq!((limits.index_entries, limits.index_bytes), (1_000_000, 100_000_000));
    limits.index_entries = 3;
    let map = |count: usize| {
        let entries: Vec<_> = (0..count).map(|i| format!(r#""t{i}":"s.safetensors""#)).collect();
        format!("{{{}}}", entries.join(","))
    };
    let too_many = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::BadIndex { problem: IndexProblem::TooManyEntries { limit: 3 } }
        )
    };
    for (index, is_refused) in [
        (format!(r#"{{"weight_map":{}}}"#, map(3)), false),
        (format!(r#"{{"weight_map":{}}}"#, map(4)), true),
        (format!(r#"{{"metadata":{},"weight_map":{}}}"#, map(3), map(1)), false),
        (format!(r#"{{"metadata":{},"weight_map":{}}}"#, map(4), map(1)), true),
        (format!(r#"{{"weight_map":{},"a":1,"b":[]}}"#, map(1)), false),
        (format!(r#"{{"a":1,"b":[],"c":{{}},"weight_map":{}}}"#, map(1)), true),
    ] {
        let error = open(index.clone(), &limits);
        assert_eq!(too_many(&error), is_refused, "{index}: {error}");
        // An index within the limit fails because it names tensors that the shard does not have.
        assert!(is_refused || matches!(error.kind(), ErrorKind::NotInShard { .. }), "{error}");
    }
    let message = open(format!(r#"{{"weight_map":{}}}"#, map(4)), &limits).to_string();
    assert!(message.ends_with("the index is malformed: it has more entries than the limit of 3"));

    let index = format!(r#"{{"weight_map":{}}}"#, map(1));
    limits.index_bytes = index.len() as u64 - 1;
    let error = open(index, &limits);
    let ErrorKind::BadIndex { problem: IndexProblem::TooLarge { limit, found } } = error.kind()
    else {
        unreachable!("{error}")
    };
    assert_eq!((*limit, *found), (limits.index_bytes, limits.index_bytes + 1));
}

/// Invalid UTF-8 is found also in parts of the text that are skipped.
#[test]
fn an_index_that_is_not_utf_8() {
    let directory = tempdir().unwrap();
    for (index, at) in [
        (&b"{\"weight_map\":{\"a\":\"s.safetensors\"},\"x\":\"\xff\"}"[..], 41),
        (b"{\"weight_map\":{\"\xc3\":\"s.safetensors\"}}", 16),
        (b"{\"metadata\":{\"x\":[\"\xe2\x82\"]},\"weight_map\":{\"a\":\"s.safetensors\"}}", 19),
    ] {
        let path = write(directory.path(), "model.safetensors.index.json", index);
        let error = refused!(
            Checkpoint::open(&path),
            ErrorKind::BadIndex { problem: IndexProblem::NotUtf8 { offset } } if *offset == at
        );
        let expected = format!("the index is malformed: it is not UTF-8 from byte {at} on");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn saving_keeps_to_the_limits_of_reading() {
    let byte = [7_u8];
    let save = |shape: &[usize], metadata: Metadata| {
        let view = TensorView::new(Dtype::U8, shape, &byte).unwrap();
        serialize([("a", view)], &SaveOptions::new().metadata(metadata))
    };
    let entries = |count: usize| (0..count).map(|i| (i.to_string(), String::new())).collect();
    let most = save(&[1; 1_024], entries(100_000)).unwrap();
    assert_eq!(SafeTensors::parse(&most).unwrap().metadata().len(), 100_000);

    let error = save(&[1; 1_025], Metadata::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooManyDimensions { limit: 1_024 }), "{error}");
    assert_eq!(error.tensor(), Some("a"));
    refused!(save(&[1], entries(100_001)), ErrorKind::TooManyMetadataEntries { limit: 100_000 });
    let (directory, path) = place("model.safetensors");
    let tensors = [("a", Dtype::U8, vec![1; 1_025])];
    refused!(
        StreamWriter::create(&path, tensors, &SaveOptions::new()),
        ErrorKind::TooManyDimensions { .. }
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
