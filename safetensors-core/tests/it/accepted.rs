//! Valid files that look unusual.

use crate::support;

use crate::support::*;

/// The tokens of a header that the tests below write in different ways: `a` is I16 `[2]`, `b` is U8
/// `[1]`, metadata is `k` → `v`.
const TOKENS: &str = r#"
    { "__metadata__" : { "k" : "v" } ,
    "a" : { "dtype" : "I16" , "shape" : [ 2 ] , "data_offsets" : [ 0 , 4 ] } ,
    "b" : { "dtype" : "U8" , "shape" : [ 1 ] , "data_offsets" : [ 4 , 5 ] } }
"#;
const DATA: &[u8] = &[1, 0, 2, 0, 3];

/// Asserts that a header, with [`DATA`] after it, has the same content as [`TOKENS`].
#[track_caller]
fn assert_same_file(header: &str) {
    let archive = SafeTensors::parse(file_with(header, DATA)).unwrap();
    assert_eq!(
        archive.metadata().iter().collect::<Vec<_>>(),
        [(&"k".into(), &"v".into())],
        "{header}"
    );
    let tensors: Vec<_> = archive
        .views()
        .map(|(name, view)| (name, view.dtype(), view.shape(), view.data()))
        .collect();
    assert_eq!(
        tensors,
        [("a", Dtype::I16, &[2][..], &DATA[..4]), ("b", Dtype::U8, &[1], &DATA[4..])],
        "{header}"
    );
}

/// The names of the tensors of a header, in file order.
fn names(header: &str, data: usize) -> Vec<String> {
    let archive = SafeTensors::parse(file(header, data)).unwrap();
    archive.tensors().map(|tensor| tensor.name().to_owned()).collect()
}

#[test]
fn all_four_kinds_of_white_space_around_and_inside_the_header() {
    let tokens: Vec<_> = TOKENS.split_whitespace().collect();
    assert_same_file(&tokens.concat());
    for space in [" ", "\t", "\n", "\r", " \t\r\n\n"] {
        assert_same_file(&format!("{space}{}{space}", tokens.join(space)));
    }
    // Padding to a whole page, as some writers align their data.
    assert_same_file(&format!("{:4088}", tokens.concat()));
    assert_same_file(&format!("{:>4088}", tokens.concat()));
}

#[test]
fn a_header_as_people_write_it() {
    assert_same_file(
        r#"
        {
            "__metadata__": {
                "k": "v"
            },
            "a": {
                "dtype": "I16",
                "shape": [
                    2
                ],
                "data_offsets": [
                    0,
                    4
                ]
            },
            "b": { "dtype": "U8", "shape": [1], "data_offsets": [4, 5] }
        }
        "#,
    );
}

#[test]
fn entries_in_any_order() {
    let metadata = r#""__metadata__":{"k":"v"}"#;
    let a = r#""a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}"#;
    let b = r#""b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}"#;
    for [x, y, z] in
        [[metadata, a, b], [metadata, b, a], [a, metadata, b], [a, b, metadata], [b, a, metadata]]
    {
        assert_same_file(&format!("{{{x},{y},{z}}}"));
    }
}

#[test]
fn fields_in_any_order() {
    let fields = [r#""dtype":"I16""#, r#""shape":[2]"#, r#""data_offsets":[0,4]"#];
    for [x, y, z] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let a = format!(r#""a":{{{},{},{}}}"#, fields[x], fields[y], fields[z]);
        let b = r#""b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}"#;
        assert_same_file(&format!(r#"{{"__metadata__":{{"k":"v"}},{a},{b}}}"#));
    }
}

#[test]
fn keys_and_dtypes_written_with_escapes() {
    assert_same_file(
        r#"{"\u005f_metadata\u005F_":{"\u006b":"\u0076"},
            "\u0061":{"dtyp\u0065":"I\u00316","\u0073hape":[2],"data\u005foffsets":[0,4]},
            "b":{"dtype":"\u0055\u0038","shape":[1],"data_offsets":[4,5]}}"#,
    );
}

#[test]
fn several_zero_size_tensors_at_one_offset() {
    let z = |name, at| {
        format!(r#""{name}":{{"dtype":"F32","shape":[3,0],"data_offsets":[{at},{at}]}}"#)
    };
    let header = format!(
        r#"{{{},{},"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},{},{},"b":{{"dtype":"U8","shape":[1],"data_offsets":[2,3]}},{},{}}}"#,
        z("first 1", 0),
        z("first 2", 0),
        z("middle 1", 2),
        z("middle 2", 2),
        z("last 1", 3),
        z("last 2", 3),
    );
    let archive = SafeTensors::parse(file(header, 3)).unwrap();
    assert_eq!(archive.header().len(), 8);
    for (name, view) in archive.views().filter(|(name, _)| name.len() > 1) {
        assert_eq!((view.shape(), view.data()), (&[3, 0][..], &[][..]), "{name}");
        assert!(view.as_slice::<f32>().unwrap().is_empty(), "{name}");
    }
    let only_empty = format!("{{{},{}}}", z("x", 0), z("y", 0));
    assert_eq!(names(&only_empty, 0), ["x", "y"]);
}

#[test]
fn names_with_any_characters() {
    for (written, name) in [
        ("", ""),
        (" ", " "),
        (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r"\u0000\u001f", "\0\u{1f}"),
        (r"\u00e9\u4E2D\ud83d\ude00", "é中😀"),
        (r"\uD800\uDC00\uDBFF\uDFFF", "\u{10000}\u{10ffff}"),
        (r"\ufffe\uffff\ufeff", "\u{fffe}\u{ffff}\u{feff}"),
        ("é中😀\u{202e}\u{7f}\u{2028}", "é中😀\u{202e}\u{7f}\u{2028}"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("dtype", "dtype"),
        ("__metadata", "__metadata"),
        ("__METADATA__", "__METADATA__"),
        ("{}[],:// /*", "{}[],:// /*"),
    ] {
        let header =
            format!(r#"{{"{written}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        assert_eq!(names(&header, 1), [name]);
        let archive = SafeTensors::parse(file(header, 1)).unwrap();
        assert_eq!(archive.view(name).unwrap().data(), [0], "{name:?}");
    }
    let long = "x".repeat(1_000_000);
    let header = format!(r#"{{"{long}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
    assert_eq!(names(&header, 1), [long]);
}

#[test]
fn names_that_differ_only_in_unicode_normalization_are_two() {
    let header = r#"{"é":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"e\u0301":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(names(header, 2), ["é", "e\u{301}"]);
}

#[test]
fn metadata_of_any_strings() {
    for (written, expected) in [
        ("", vec![]),
        (r#""":"""#, vec![("", "")]),
        (
            r#""k":"","b":"\n\u0000é","a":"{\"x\":[1]}""#,
            vec![("a", "{\"x\":[1]}"), ("b", "\n\0é"), ("k", "")],
        ),
        (r#""__metadata__":"dtype""#, vec![("__metadata__", "dtype")]),
    ] {
        let archive =
            SafeTensors::parse(file(format!(r#"{{"__metadata__":{{{written}}}}}"#), 0)).unwrap();
        let metadata: Vec<_> =
            archive.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(metadata, expected);
    }
}

#[test]
fn no_tensors_at_all() {
    for header in ["{}", " {}", "{ }", "{}      ", "\n{\t}\r", r#"{"__metadata__":{}}"#] {
        let bytes = file(header, 0);
        let archive = SafeTensors::parse(&bytes).unwrap();
        assert!(archive.header().is_empty() && archive.metadata().is_empty(), "{header:?}");
        assert_eq!(archive.header().data_len(), 0);
        assert_eq!(archive.header().data_start(), bytes.len() as u64);

        let directory = tempdir().unwrap();
        let path = support::write(directory.path(), "empty.safetensors", bytes);
        assert!(Checkpoint::open(path).unwrap().is_empty(), "{header:?}");
    }
}

/// Data may begin at any offset. A typed borrow of misaligned data fails with the reason; a copy
/// works.
#[test]
fn unaligned_data() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let values = [1.5_f32, -2.0];
    let bytes = file_with(header, &values.map(f32::to_le_bytes).concat());
    let mut buffer = vec![0; bytes.len() + 3];
    let mut aligned = 0;
    for shift in 0..4 {
        let place = shift..shift + bytes.len();
        buffer[place.clone()].copy_from_slice(&bytes);
        let archive = SafeTensors::parse(&buffer[place]).unwrap();
        let view = archive.view("a").unwrap();
        let at = view.data().as_ptr().addr();
        match view.as_slice::<f32>() {
            Ok(slice) => {
                assert!(at.is_multiple_of(4) && slice == values);
                aligned += 1;
            }
            Err(error) if cfg!(target_endian = "big") => {
                assert!(matches!(error.kind(), ErrorKind::BigEndian { dtype: Dtype::F32 }));
                aligned += u32::from(at.is_multiple_of(4));
            }
            Err(error) => {
                assert!(!at.is_multiple_of(4));
                let expected =
                    ErrorKind::Misaligned { dtype: Dtype::F32, alignment: 4, address: at };
                assert_eq!(format!("{:?}", error.kind()), format!("{expected:?}"));
                assert!(error.to_string().contains(&format!("{at:#x}")), "{error}");
            }
        }
        assert_eq!(TensorBuf::from_view(&view).unwrap().as_slice::<f32>().unwrap(), values);
    }
    assert_eq!(aligned, 1, "one of four neighbouring addresses");
}

#[test]
fn any_number_of_dimensions() {
    for (shape, bytes) in [
        (vec![], 2),
        (vec![1], 2),
        (vec![1, 1, 2, 1, 1, 1, 3, 1, 1, 1], 12),
        (vec![1; 1000], 2),
        (vec![2, 0, 3], 0),
        (vec![0; 10], 0),
    ] {
        let header =
            format!(r#"{{"a":{{"dtype":"F16","shape":{shape:?},"data_offsets":[0,{bytes}]}}}}"#);
        let archive = SafeTensors::parse(file(header, bytes)).unwrap();
        let view = archive.view("a").unwrap();
        assert_eq!((view.shape(), view.data().len()), (&shape[..], bytes));
    }
}

/// The largest dimensions with a size that can still be computed, in a tensor without bytes.
#[cfg(target_pointer_width = "64")]
#[test]
fn huge_dimensions_are_accepted_next_to_a_zero() {
    for (dtype, shape) in
        [("U8", [usize::MAX, 0]), ("F4", [0, usize::MAX]), ("F64", [(1 << 61) - 1, 0])]
    {
        let header =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,0]}}}}"#);
        assert_eq!(SafeTensors::parse(file(header, 0)).unwrap().view("a").unwrap().shape(), shape);
    }
}

#[test]
fn nan_and_infinities_keep_their_bits() {
    let bits = [0x7fc0_0001_u32, 0xffff_ffff, 0x7f80_0001, 0x7f80_0000, 0xff80_0000, 0x8000_0000];
    let data = bits.map(u32::to_le_bytes).concat();
    let header = r#"{"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}"#;
    let archive = SafeTensors::parse(file_with(header, &data)).unwrap();
    let view = archive.view("a").unwrap();
    assert_eq!(view.data(), data);
    let values = TensorBuf::from_view(&view).unwrap().into_vec::<f32>().unwrap();
    assert_eq!(values.into_iter().map(f32::to_bits).collect::<Vec<_>>(), bits);
}

/// The list of the format: the name and the bits per element of each dtype.
#[test]
fn all_22_dtypes() {
    let dtypes = [
        ("BOOL", 8),
        ("F4", 4),
        ("F6_E2M3", 6),
        ("F6_E3M2", 6),
        ("U8", 8),
        ("I8", 8),
        ("F8_E5M2", 8),
        ("F8_E4M3", 8),
        ("F8_E8M0", 8),
        ("F8_E4M3FNUZ", 8),
        ("F8_E5M2FNUZ", 8),
        ("I16", 16),
        ("U16", 16),
        ("F16", 16),
        ("BF16", 16),
        ("I32", 32),
        ("U32", 32),
        ("F32", 32),
        ("C64", 64),
        ("F64", 64),
        ("I64", 64),
        ("U64", 64),
    ];
    // The list of the reference implementation is the whole table.
    assert_eq!(dtypes.len(), Dtype::ALL.len());
    for (dtype, bits) in dtypes {
        let header =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":[2,4],"data_offsets":[0,{bits}]}}}}"#);
        let archive = SafeTensors::parse(file(header, bits)).unwrap();
        let view = archive.view("a").unwrap();
        assert_eq!((view.dtype().name(), view.data().len()), (dtype, bits));
        assert_eq!(file_bytes(&TensorBuf::from_view(&view).unwrap()), view.data());
    }
}

/// MLX writes it in files without metadata.
#[test]
fn metadata_may_be_null() {
    let header = r#"{"__metadata__": null, "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let archive = SafeTensors::parse(file(header, 1)).unwrap();
    assert!(archive.metadata().is_empty());
    assert_eq!(archive.header().len(), 1);
}
