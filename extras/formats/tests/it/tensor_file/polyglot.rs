//! Files with two formats at once.

use safetensors_core::{SaveOptions, TensorView, serialize};
use safetensors_formats::npz::Archive;
use safetensors_formats::{ErrorKind, Limits, Options, TensorFile, check_polyglot, npy};

use super::{fixture, refused};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// A safetensors file with one tensor of these bytes.
fn safetensors(data: &[u8]) -> Vec<u8> {
    let shape = [data.len()];
    let data = TensorView::from_slice(&shape, data).unwrap();
    serialize([("data", data)], &SaveOptions::new()).unwrap()
}

#[test]
fn an_archive_before_or_behind_a_file_is_refused_by_name() {
    let zip = read("stored.npz");
    let cases = [
        ("a GGUF file", [read("gguf/plain.gguf"), zip.clone()]),
        ("a NumPy file (.npy)", [read("npy/i4_big_fortran.npy"), zip.clone()]),
        ("a pickle", [read("pytorch/strided_legacy.pt"), zip.clone()]),
        ("a PyTorch checkpoint", [read("pytorch/alone.pt"), zip.clone()]),
        ("a GGUF file", [zip.clone(), read("gguf/plain.gguf")]),
        ("a safetensors file", [zip.clone(), safetensors(&[1, 2])]),
        ("a pickle", [zip.clone(), read("pytorch/strided_legacy.pt")]),
        ("other bytes", [zip.clone(), vec![0; 3]]),
    ];
    for (other, [first, second]) in cases {
        let is_behind = second == zip;
        let bytes = [first.clone(), second].concat();
        let error = refused(&bytes, &Options::new());
        let same = check_polyglot(&bytes).unwrap_err().to_string();
        assert_eq!(error, format!("a file: {same}"));
        let (begin, end) = if is_behind { (first.len(), bytes.len()) } else { (0, zip.len()) };
        let place = format!("and a ZIP archive (bytes {begin} to {end} of {}): ", bytes.len());
        assert!(error.contains(&format!("it is {other}")) && error.contains(&place), "{error}");
        if other.starts_with("a NumPy") {
            let error = npy::Array::from_source(bytes, "a file", &Limits::default()).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::TwoFormats { .. })), "{error}");
        } else if !is_behind {
            let error = Archive::from_source(bytes, "a file", &Limits::default()).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::TwoFormats { .. })), "{error}");
        }
    }
}

/// An archive may count earlier bytes as its own, as programs that unpack themselves do.
#[test]
fn an_archive_that_counts_a_file_before_it_as_its_own_is_refused() {
    use std::io::Write;
    let member = read("npy/i4_big_fortran.npy");
    for before in [read("gguf/plain.gguf"), read("stored.npz"), safetensors(&[1, 2])] {
        let mut file = std::io::Cursor::new(before.clone());
        file.set_position(before.len() as u64);
        let mut archive = zip::ZipWriter::new(file);
        archive.start_file("a.npy", zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(&member).unwrap();
        let bytes = archive.finish().unwrap().into_inner();
        assert!(bytes.starts_with(&before));
        // Only the list of members shows an archive behind another one.
        if !before.starts_with(b"PK") {
            let error = check_polyglot(&bytes).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::TwoFormats { .. })), "{error}");
        }
        if !before.starts_with(&safetensors(&[1, 2])) {
            assert!(refused(&bytes, &Options::new()).contains("and a ZIP archive"));
        }
    }
}

#[test]
fn a_sound_safetensors_file_may_be_an_archive() {
    for name in ["stored.npz", "deflated.npz", "pytorch/alone.pt"] {
        for behind in [0, 3, 1000] {
            let file = safetensors(&[read(name), vec![0; behind]].concat());
            let error = check_polyglot(&file).unwrap_err().to_string();
            assert!(error.starts_with("it is a safetensors file and a ZIP archive"), "{error}");
        }
    }
    // An archive alone is one format.
    check_polyglot(&read("stored.npz")).unwrap();
    // The mark alone is a value like any other.
    for data in [&b"PK\x05\x06"[..], &[b"PK\x05\x06", &[7; 40][..]].concat(), &[0; 100_000]] {
        check_polyglot(&safetensors(data)).unwrap();
    }
}

#[test]
fn archives_with_a_comment_or_large_numbers_are_one_format() {
    use std::io::Write;
    let member = read("npy/i4_big_fortran.npy");
    for comment in [0, 1, 1000, 65_535] {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default().large_file(true);
        archive.start_file("a.npy", options).unwrap();
        archive.write_all(&member).unwrap();
        archive.set_raw_comment(vec![b'x'; comment].into_boxed_slice()).unwrap();
        let mut bytes = archive.finish().unwrap().into_inner();
        TensorFile::from_source(bytes.clone(), "a file", &Options::new()).unwrap();
        bytes.extend([0; 70_000]);
        let error = refused(&bytes, &Options::new());
        assert!(error.contains("archive"), "{error}");
    }
}

/// A sound safetensors file that Python's `pickle.load` reads as a pickle: its length is the opcode
/// of a text, which ends in the first name, where others follow up to the data.
fn pickled(program: &[u8]) -> Vec<u8> {
    const HEADER: usize = 0x558;
    let mut file = (HEADER as u64).to_le_bytes().to_vec();
    file.extend(b"{\"");
    let entry = format!(
        "\":{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}",
        program.len()
    );
    while 8 + HEADER - file.len() >= 2 * 128 {
        file.extend([b"U~", &[b'a'; 126][..]].concat());
    }
    let left = 8 + HEADER - file.len() - 2;
    let short = left.min(100);
    file.extend([&[b'U', short as u8][..], &vec![b'a'; short]].concat());
    let rest = 8 + HEADER - file.len() - 2;
    file.extend([b'U', rest as u8]);
    file.extend(format!("{entry:rest$}").bytes());
    assert_eq!(file.len(), 8 + HEADER);
    file.extend(program);
    file
}

#[test]
fn a_sound_safetensors_file_may_be_a_pickle() {
    for (program, import) in [
        (&b"0cos\ngetcwd\n)R."[..], "os.getcwd"),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06getcwd\x94\x93)R.", "a class"),
    ] {
        let file = pickled(program);
        safetensors_core::SafeTensors::parse(&file).unwrap();
        let error = check_polyglot(&file).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::AlsoPickle { .. })), "{error}");
        let says = format!("it is a safetensors file and a pickle that imports {import}: ");
        assert!(error.to_string().starts_with(&says), "{error}");
    }
    // A pickle without imports runs nothing, and other files do not come so far.
    check_polyglot(&pickled(b"N.")).unwrap();
    check_polyglot(&pickled(b"values")).unwrap();
    for data in [&b"cos\nsystem\n"[..], b"\x80\x04."] {
        check_polyglot(&safetensors(data)).unwrap();
    }
}

/// A sound safetensors file that is a pickle from its first byte on: its length is the opcode of a
/// text, behind which another text begins, in the metadata. It ends in the values.
fn pickled_by_metadata(program: &[u8]) -> Vec<u8> {
    const HEADER: usize = 0x2058;
    let len = program.len();
    let entry = format!("{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[0,{len}]}}");
    let header = format!("{{\"__metadata__\":{{\"a\":\"aaaaaaaV\"}},\"data\":{entry}}}");
    let start = (HEADER as u64).to_le_bytes();
    assert_eq!((start[0], header.as_bytes()[5 + usize::from(start[1]) - 8]), (b'X', b'V'));
    [&start[..], format!("{header:HEADER$}").as_bytes(), program].concat()
}

/// Python's `pickle.loads` calls `os.getpid` for each of these.
#[test]
fn no_opcode_hides_a_pickle() {
    let long = [&b"\n\x80\x04cos\n"[..], &b"path.os.".repeat(100), b"getpid\n)R."].concat();
    for program in [
        &b"\nC\x01a\x98cos\ngetpid\n)R."[..],
        b"\n]Nbcos\ngetpid\n)R.",
        b"\nI5\0{\n0cos\ngetpid\n)R.",
        &long,
    ] {
        let file = pickled_by_metadata(program);
        safetensors_core::SafeTensors::parse(&file).unwrap();
        let error = check_polyglot(&file).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::AlsoPickle { .. })), "{error}");
    }
    check_polyglot(&pickled_by_metadata(b"\nN.")).unwrap();
}

/// The offsets in an archive may all be too large by the same number, which Python's `zipfile`
/// subtracts.
#[test]
fn an_archive_with_shifted_offsets_is_detected() {
    let mut zip = read("stored.npz");
    let lists: Vec<_> = (0..zip.len()).filter(|&at| zip[at..].starts_with(b"PK\x01\x02")).collect();
    let fields = lists.iter().map(|at| at + 42).chain([zip.len() - 22 + 16]);
    for at in fields.collect::<Vec<_>>() {
        let field: &mut [u8; 4] = (&mut zip[at..at + 4]).try_into().unwrap();
        *field = (u32::from_le_bytes(*field) + 5000).to_le_bytes();
    }
    let error = check_polyglot(&safetensors(&zip)).unwrap_err().to_string();
    assert!(error.starts_with("it is a safetensors file and a ZIP archive"), "{error}");
}
