//! Messages have a bounded length, even about a header of several megabytes.

use std::io;
use std::time::{Duration, Instant};

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::digest::TensorDigests;
use safetensors_core::error::{IndexProblem, TieProblem};
use safetensors_core::header::Header;

use crate::support::*;

/// The length in bytes of a long text in a header.
const LONG: usize = 3_000_000;

/// Texts, and the number of bytes of each: plain text, and text that becomes longest when it is
/// escaped. Each is far longer than a message.
const WORST: [(&str, usize); 4] =
    [("n", LONG), ("\"", 100_000), ("\u{202e}", 100_000), ("\u{10ffff}", 100_000)];

/// Limits that no test of messages reaches.
fn no_limits() -> Limits {
    let mut limits = Limits::default();
    limits.ndim = usize::MAX;
    limits.metadata_entries = usize::MAX;
    limits
}

/// Asserts that `Display` and `Debug` of an error are short and fast, and that the message is
/// printable.
#[track_caller]
fn assert_bounded(error: &Error) {
    let start = Instant::now();
    let message = error.to_string();
    let debug = format!("{error:#?}");
    assert_eq!(format!("{error:?}"), message);
    let place = error.file().map_or(0, |file| file.len().min(500));
    assert!(message.len() < 1_000 + place, "{} bytes: {message}", message.len());
    assert!(debug.len() < 5_000, "{} bytes", debug.len());
    assert!(!message.chars().any(char::is_control), "{message}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// Asserts that a header is refused with a bounded message.
#[track_caller]
fn refused(header: &str, is_expected: impl Fn(&ErrorKind) -> bool) {
    assert!(header.len() > 90_000);
    let error = Header::parse_json(header.as_bytes(), &no_limits()).unwrap_err();
    assert!(is_expected(error.kind()), "{error}");
    assert_bounded(&error);
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

macro_rules! is {
    ($kind:ident) => {
        |kind: &ErrorKind| matches!(kind, ErrorKind::$kind { .. })
    };
}

#[test]
fn long_names_in_every_error_of_the_text() {
    for (worst, len) in WORST {
        let long = worst.repeat(len / worst.len());
        let name = json(&long);
        let entry = |fields: &str| format!(r#"{{{name}:{{{fields}}}}}"#);
        let typed = |shape: &str, offsets: &str| {
            entry(&format!(r#""dtype":"F4","shape":{shape},"data_offsets":{offsets}"#))
        };
        refused(&format!(r#"{{{name}:1}}"#), is!(EntryNotAnObject));
        refused(&entry(""), is!(MissingField));
        refused(&entry(r#""dtype":"F4","dtype":"F4""#), is!(DuplicateField));
        refused(&entry(&format!(r#"{name}:1"#)), is!(UnknownField));
        refused(&entry(r#""dtype":1"#), is!(WrongType));
        refused(&entry(&format!(r#""dtype":{name}"#)), is!(UnknownDtype));
        refused(&typed("[1.5]", "[0,0]"), is!(BadNumber));
        refused(&typed("[[2]]", "[0,0]"), is!(TooDeep));
        refused(&typed("[3]", "[0,0]"), is!(PartialByte));
        refused(&typed("[4294967295,4294967295,4294967295]", "[0,0]"), is!(ShapeOverflow));
        refused(&typed("[2]", "[1,0]"), is!(ReversedOffsets));
        refused(&typed("[2]", "[0,2]"), is!(WrongSize));
        refused(&typed("[2]", "[1,2]"), is!(Hole));
        refused(&typed("[0]", "[1,1]"), is!(EmptyOffBoundary));
        let metadata = |entries: &str| format!(r#"{{"__metadata__":{{{entries}}}}}"#);
        refused(&metadata(&format!("{name}:1")), is!(MetadataNotAString));
        refused(&metadata(&format!(r#"{name}:"",{name}:"""#)), is!(DuplicateMetadataKey));
        refused(&metadata(&format!("{name}:{name}")).replace('}', "\0"), is!(Json));
        refused(&format!("{name}{{}}"), is!(NotAnObject));
        let two = |first: &str, second: &str, other: &str| {
            let entry = r#""dtype":"U8","shape":[2],"data_offsets":"#;
            format!(r#"{{{name}:{{{entry}{first}}},{other}:{{{entry}{second}}}}}"#)
        };
        let other = json(&format!("{long}x"));
        refused(&two("[0,2]", "[2,4]", &name), is!(DuplicateTensor));
        refused(&two("[0,2]", "[1,3]", &other), is!(Overlap));
        refused(&two("[0,2]", "[0,2]", &other), is!(SameRange));
    }
}

#[test]
fn shapes_of_a_million_dimensions() {
    let shape = |dim: &str| format!("[{}]", vec![dim; LONG / dim.len()].join(","));
    let ones = shape("1");
    let header = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    refused(&header("F4", &ones, "[0,0]"), is!(PartialByte));
    refused(&header("F32", &ones, "[0,8]"), is!(WrongSize));
    refused(&header("F32", &shape(&usize::MAX.to_string()), "[0,8]"), is!(ShapeOverflow));
    let mut number = "9".repeat(LONG);
    number.push_str("e5");
    refused(&header("F32", &format!("[{number}]"), "[0,8]"), is!(BadNumber));

    // Views and buffers with shapes that may come from a file.
    let shape = vec![1; LONG];
    let error = TensorView::new(Dtype::F32, &shape, &[0; 8]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DataLength { .. }));
    assert_bounded(&error);
    assert_bounded(&ErrorKind::WrongShape { expected: shape.clone(), found: shape }.into());
}

#[test]
fn every_other_kind_that_has_text() {
    let long = || "\u{202e}".repeat(LONG / 3);
    let many = || vec![long(); 3];
    let framework = "a framework";
    for kind in [
        ErrorKind::DoesNotFit { index: 0, value: format!("{:?}", f64::MAX), to: Dtype::I8 },
        ErrorKind::UnsupportedFrameworkType { framework, found: long() },
        ErrorKind::BadModelSpec { key: "key", expected: "text", found: long() },
        ErrorKind::BadDigestRecord { key: "digests", problem: long() },
        ErrorKind::BadDigest { expected: 32, found: long() },
        ErrorKind::NoCheckpoint { found: many(), below: many() },
        ErrorKind::Overtaken { file: long() },
        ErrorKind::NotAlone { file: long(), others: many() },
        ErrorKind::BadIndex { problem: IndexProblem::Json(long()) },
        ErrorKind::BadIndex { problem: IndexProblem::UnsafeName { name: long() } },
        ErrorKind::NotInShard { shard: long() },
        ErrorKind::BadShardSize { found: long() },
        ErrorKind::BadFilePattern { found: long() },
        ErrorKind::Tie { problem: TieProblem::NotCovered { names: many() } },
        ErrorKind::Tie { problem: TieProblem::PartlyTied { kept: long() } },
        ErrorKind::Tie { problem: TieProblem::NotRecorded { kept: long(), found: long() } },
        ErrorKind::Tie { problem: TieProblem::Reserved { kept: long() } },
    ] {
        assert_bounded(&Error::from(kind).in_tensor(&long()).in_file(long()));
    }
    // An error that holds another is no longer than that one.
    let inner = Error::from(ErrorKind::TensorNotFound).in_tensor(&long());
    assert_bounded(&ErrorKind::Io(io::Error::other(inner)).into());
}

#[test]
fn suggestions_of_long_names() {
    // The longest names that are suggested, in the worst characters.
    for (worst, _) in WORST {
        let long = worst.repeat(1_000 / worst.len());
        let names = ["a", "b", "c", "d"].map(|start| format!("{start}.{long}"));
        let value = TensorView::from_slice(&[1], &[1_u8]).unwrap();
        let tensors = names.iter().map(|name| (name, value));
        let bytes = serialize(tensors, &Default::default()).unwrap();
        let file = SafeTensors::from_source(bytes).unwrap();
        let error = file.tensor(&format!("e.{long}")).unwrap_err();
        assert_eq!(error.similar().len(), 3);
        assert_bounded(&error);
    }
}

#[test]
fn an_index_with_long_names() {
    let directory = tempdir().unwrap();
    for (worst, len) in WORST {
        let long = worst.repeat(len / worst.len());
        let (name, shard) = (json(&long), json(&format!("{long}.safetensors")));
        for index in [
            format!(r#"{{"weight_map":{{"a":{name}}}}}"#),
            format!(r#"{{"weight_map":{{"a":{shard}}}}}"#),
            format!(r#"{{"weight_map":{{{name}:"s.safetensors"}}}}"#),
            format!(r#"{{"weight_map":{name}}}"#),
            format!(r#"{{"weight_map":{{"a":[{name}]}}}}"#),
            format!(r#"{{"weight_map":{{{name}:"s.safetensors",{name}:"s.safetensors"}}}}"#),
            format!(r#"{{{name}:1,{name}:2}}"#),
            format!(r#"{{"metadata":{{{name}:1,{name}:2}},"weight_map":{{}}}}"#),
        ] {
            let path = write(directory.path(), "model.safetensors.index.json", index);
            let error = Checkpoint::open(path).unwrap_err();
            assert_bounded(&error);
            if let ErrorKind::BadIndex { problem: IndexProblem::Json(text) } = error.kind() {
                assert!(text.len() < 500, "{} bytes are kept", text.len());
            }
        }
    }
}

#[test]
fn a_long_unknown_word_is_shortened_in_the_error() {
    let long = "x".repeat(LONG);
    for (header, expected) in [
        (format!(r#"{{"a":{{"dtype":"{long}"}}}}"#), "unknown dtype"),
        (format!(r#"{{"a":{{"{long}":1}}}}"#), "is unknown"),
    ] {
        let error = Header::parse_json(header.as_bytes(), &no_limits()).unwrap_err();
        let (ErrorKind::UnknownDtype { found } | ErrorKind::UnknownField { found }) = error.kind()
        else {
            unreachable!("{error}")
        };
        assert!(found.len() < 200, "{} bytes", found.len());
        assert!(error.to_string().contains(expected) && error.to_string().contains("xxx..."));
    }
    for record in [format!("[\"{long}\"]"), format!("{{\"a\":\"{long}\"}}"), format!("\"{long}\"")]
    {
        let metadata = Metadata::from([(safetensors_core::digest::KEY.to_owned(), record)]);
        let error = TensorDigests::from_metadata(&metadata).unwrap_err();
        assert_bounded(&error);
        let (ErrorKind::BadDigest { found: kept, .. }
        | ErrorKind::BadDigestRecord { problem: kept, .. }) = error.kind()
        else {
            unreachable!("{error}")
        };
        assert!(kept.len() < 500, "{} bytes", kept.len());
    }
}

/// An error with everything: the file's path, the tensor and the kind.
#[test]
fn a_file_of_four_megabytes_is_refused_in_a_few_hundred_bytes() {
    let directory = tempdir().unwrap();
    let dims = vec!["1"; 2_000_000].join(",");
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{dims}],"data_offsets":[0,4]}}}}"#);
    let path = write(directory.path(), "model.safetensors", file(header, 3));
    for limits in [Limits::default(), no_limits()] {
        let message = Checkpoint::open_in(LocalStore, &path, &limits).unwrap_err().to_string();
        assert!(message.len() < 300 + path.as_os_str().len(), "{message}");
    }
}
