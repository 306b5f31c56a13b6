//! The content of a saved file: the same bytes on every run, every tensor unchanged, and nothing
//! that could not be read back.

use safetensors_core::save::{Order, Sink};

use crate::support::*;

/// A source with bytes that may differ from its description.
struct Pieces {
    dtype: Dtype,
    shape: Vec<usize>,
    pieces: Vec<Vec<u8>>,
    /// Whether to go on after the sink has failed.
    stubborn: bool,
}

impl Pieces {
    /// A source of dtype U8 and shape `[len]` that gives these pieces.
    fn new(len: usize, pieces: &[&[u8]]) -> Self {
        let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
        Self { dtype: Dtype::U8, shape: vec![len], pieces, stubborn: false }
    }
}

impl TensorSource for Pieces {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        for piece in &self.pieces {
            let given = sink(piece);
            if !self.stubborn {
                given?;
            }
        }
        Ok(())
    }
}

/// Asserts that `serialize` and `save` refuse the tensors with the same error, that the file is
/// unchanged, and that nothing is next to it.
#[track_caller]
fn refused<N: AsRef<str> + Clone, S: TensorSource>(
    tensors: &[(N, S)],
    options: &SaveOptions,
) -> Error {
    let given = || tensors.iter().map(|(name, source)| (name.clone(), source));
    let directory = tempdir().unwrap();
    let path = write(directory.path(), "model.safetensors", "the old file");
    let error = save(&path, given(), options).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), b"the old file");
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    assert_eq!(error.file(), path.to_str());

    let in_memory = serialize(given(), options).unwrap_err();
    assert_eq!(format!("{:?}", in_memory.kind()), format!("{:?}", error.kind()));
    assert_eq!(in_memory.tensor(), error.tensor());
    error
}

/// A view of zeros, of any length up to 4096 bytes.
fn zeros(dtype: Dtype, shape: &[usize]) -> TensorView<'_> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let bytes = safetensors_core::shape::byte_len(dtype, shape).unwrap();
    TensorView::new(dtype, shape, &ZEROS[..bytes as usize]).unwrap()
}

#[test]
fn the_same_bytes_whatever_the_order_of_the_input() {
    let mut tensors = [
        ("byte", zeros(Dtype::U8, &[3])),
        ("b", zeros(Dtype::F32, &[2])),
        ("a", zeros(Dtype::F32, &[1])),
        ("double", zeros(Dtype::F64, &[1])),
        ("half", zeros(Dtype::BF16, &[5])),
        ("empty", zeros(Dtype::I64, &[0])),
        ("bool", zeros(Dtype::BOOL, &[])),
    ];
    let options = |reversed| {
        let mut metadata = vec![("format", "pt"), ("a", "1"), ("z", "2")];
        if reversed {
            metadata.reverse();
        }
        SaveOptions::new().metadata(metadata)
    };
    let first = serialize(tensors, &options(false)).unwrap();
    for i in 0..tensors.len() {
        tensors.rotate_left(i);
        assert_eq!(serialize(tensors, &options(i % 2 == 1)).unwrap(), first);
        let (_directory, path) = place("model.safetensors");
        save(&path, tensors, &options(true)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "a saved file and serialized bytes");
    }
}

/// The bytes are compared one by one, so that no change of the layout goes unnoticed.
#[test]
fn the_bytes_of_a_small_file() {
    let values = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
    let tensors = [
        ("b\"\n", zeros(Dtype::U8, &[2])),
        ("a", TensorView::new(Dtype::F32, &[2, 1], &values).unwrap()),
    ];
    let bytes = serialize(tensors, &SaveOptions::new().metadata([("k", "v")])).unwrap();
    let header = concat!(
        r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"#,
        r#""b\"\n":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}}"#
    );
    assert_eq!(bytes, file_with(format!("{header:144}"), &[0, 0, 128, 63, 0, 0, 0, 64, 0, 0]));
}

#[test]
fn tensors_are_ordered_by_alignment_and_name_unless_kept() {
    let tensors = [
        ("z", zeros(Dtype::U8, &[3])),
        ("y", zeros(Dtype::F16, &[3])),
        ("c", zeros(Dtype::F64, &[1])),
        ("x", zeros(Dtype::C64, &[1])),
        ("b", zeros(Dtype::F64, &[0])),
        ("a", zeros(Dtype::BOOL, &[1])),
    ];
    let names = |order| {
        let archive =
            SafeTensors::parse(serialize(tensors, &SaveOptions::new().order(order)).unwrap())
                .unwrap();
        archive.tensors().map(|tensor| tensor.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(Order::Alignment), ["b", "c", "x", "y", "z", "a"]);
    assert_eq!(names(Order::Given), ["z", "y", "c", "x", "b", "a"]);
}

#[test]
fn each_tensor_is_naturally_aligned() {
    let all: Vec<_> =
        Dtype::ALL.iter().map(|dtype| (dtype.name(), zeros(*dtype, &[3, 4]))).collect();
    let archive = SafeTensors::parse(serialize(all, &SaveOptions::new()).unwrap()).unwrap();
    for tensor in archive.tensors() {
        let element = u64::from(tensor.dtype().bits().div_ceil(8));
        assert!(tensor.file_offset().is_multiple_of(element), "{}", tensor.name());
    }
}

#[test]
fn data_begins_at_a_multiple_of_the_alignment() {
    for align in [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        for name_length in [1, 2, 7, 100, 4000] {
            let name = "n".repeat(name_length);
            let bytes =
                serialize([(&name, zeros(Dtype::U8, &[1]))], &SaveOptions::new().align(align))
                    .unwrap();
            let archive = SafeTensors::parse(&bytes).unwrap();
            assert!(archive.header().data_start().is_multiple_of(align as u64), "{align}");
            assert!(
                archive.header().data_start() < (8 + 100 + name_length + align) as u64,
                "no more than needed"
            );
            let padding =
                bytes[..bytes.len() - 1].iter().rev().take_while(|byte| **byte == b' ').count();
            assert_eq!(
                (bytes[8], bytes[bytes.len() - 2 - padding]),
                (b'{', b'}'),
                "only spaces, only at the end"
            );
        }
    }
    let nothing = serialize([] as [(&str, TensorView<'_>); 0], &SaveOptions::new()).unwrap();
    assert_eq!(nothing, b"\x08\0\0\0\0\0\0\0{}      ");
}

#[test]
fn other_alignments_are_refused() {
    for align in [0, 1, 2, 4, 7, 9, 24, 4095, 8192, usize::MAX, 1 << (usize::BITS - 1)] {
        let error = refused(&[("a", zeros(Dtype::U8, &[1]))], &SaveOptions::new().align(align));
        assert!(
            matches!(error.kind(), ErrorKind::BadAlignment { found } if *found == align),
            "{error}"
        );
        assert!(error.to_string().contains(&align.to_string()), "{error}");
    }
}

#[test]
fn a_tensor_written_in_pieces_is_complete() {
    let source = Pieces::new(6, &[&[1], &[], &[2, 3, 4], &[], &[5, 6]]);
    let other = Pieces::new(0, &[]);
    let boxed: [(&str, Box<dyn TensorSource>); 2] =
        [("a", Box::new(source)), ("b", Box::new(other))];
    let bytes = serialize(boxed, &SaveOptions::new()).unwrap();
    assert_eq!(SafeTensors::parse(&bytes).unwrap().view("a").unwrap().data(), [1, 2, 3, 4, 5, 6]);
}

/// All characters that JSON text must escape, and the first one that it need not.
#[test]
fn every_character_that_needs_an_escape_comes_back() {
    for c in ('\0'..='!').chain(['"', '\\', '/', '\u{7f}', '\u{2028}', '\u{feff}', '\u{10ffff}']) {
        let text = format!("{c}x{c}");
        let options = SaveOptions::new().metadata([(&text, &text)]);
        let archive =
            SafeTensors::parse(serialize([(&text, zeros(Dtype::U8, &[1]))], &options).unwrap())
                .unwrap();
        assert_eq!(archive.view(&text).unwrap().data(), [0], "{c:?}");
        assert_eq!(archive.metadata().get(&text), Some(&text), "{c:?}");
    }
}

#[test]
fn the_reserved_name_is_refused() {
    let error = refused(
        &[("a", zeros(Dtype::U8, &[1])), ("__metadata__", zeros(Dtype::U8, &[1]))],
        &SaveOptions::new(),
    );
    assert!(matches!(error.kind(), ErrorKind::ReservedName), "{error}");
    assert_eq!(error.tensor(), Some("__metadata__"));
}

#[test]
fn duplicate_names_are_refused() {
    let one = zeros(Dtype::U8, &[1]);
    let error =
        refused(&[("a", one), ("twice", one), ("b", one), ("twice", one)], &SaveOptions::new());
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!(error.tensor(), Some("twice"));
}

#[test]
fn a_source_that_gives_too_little_or_too_much_is_refused() {
    for (pieces, found) in [
        (&[][..], 0),
        (&[&[1, 2, 3][..]], 3),
        (&[&[1][..], &[2], &[3]], 3),
        (&[&[1, 2, 3, 4, 5][..]], 5),
        (&[&[1, 2, 3, 4][..], &[5]], 5),
        (&[&[1, 2][..], &[3, 4, 5, 6]], 6),
    ] {
        for stubborn in [false, true] {
            let source = Pieces { stubborn, ..Pieces::new(4, pieces) };
            let error =
                refused(&[("good", Pieces::new(1, &[&[0]])), ("bad", source)], &SaveOptions::new());
            let ErrorKind::SourceLength { expected: 4, found: given } = *error.kind() else {
                unreachable!("{error}")
            };
            assert_eq!((given, error.tensor()), (found, Some("bad")));
            assert!(
                error.to_string().contains("4 bytes")
                    && error.to_string().contains(&found.to_string()),
                "{error}"
            );
        }
    }
}

#[test]
fn tensors_without_a_possible_size_are_refused() {
    let claims = |dtype, shape: &[usize]| Pieces {
        dtype,
        shape: shape.into(),
        pieces: vec![],
        stubborn: false,
    };
    let error = refused(&[("part", claims(Dtype::F4, &[3]))], &SaveOptions::new());
    assert!(matches!(error.kind(), ErrorKind::PartialByte { dtype: Dtype::F4, .. }), "{error}");
    assert_eq!(error.tensor(), Some("part"));

    // One tensor that alone is too large, one that is too large with the bytes of the header, and
    // two that are too large together.
    let huge = usize::MAX / 2 + 1;
    for tensors in [
        vec![("huge", claims(Dtype::F64, &[usize::MAX]))],
        vec![("huge", claims(Dtype::U8, &[huge, 0, 2]))],
        vec![("huge", claims(Dtype::U8, &[usize::MAX]))],
        vec![("a", claims(Dtype::U8, &[huge])), ("huge", claims(Dtype::U8, &[huge]))],
    ] {
        if cfg!(target_pointer_width = "64") {
            let error = refused(&tensors, &SaveOptions::new());
            assert!(matches!(error.kind(), ErrorKind::ShapeOverflow { .. }), "{error}");
            assert_eq!(
                error.tensor(),
                Some(if tensors.len() == 1 { "huge" } else { tensors[0].0 })
            );
        }
    }
}

/// The limit of readers also holds for the writer.
#[test]
fn a_header_over_the_limit_is_refused() {
    let name = "\u{1f600}".repeat(25_000_000);
    let error = refused(&[(name.as_str(), zeros(Dtype::U8, &[1]))], &SaveOptions::new());
    assert!(
        matches!(error.kind(), ErrorKind::HeaderTooLarge { limit: 100_000_000, found } if *found > 100_000_000),
        "{error}"
    );
}

#[test]
fn the_elements_of_owned_buffers_are_written() {
    let buf = TensorBuf::from_vec(vec![2], vec![0x0102_0304_u32, 5]).unwrap();
    let bytes = serialize([("a", &buf)], &SaveOptions::new()).unwrap();
    assert_eq!(
        SafeTensors::parse(&bytes).unwrap().view("a").unwrap().data(),
        [4, 3, 2, 1, 5, 0, 0, 0]
    );
}
