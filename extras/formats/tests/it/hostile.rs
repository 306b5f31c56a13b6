//! Hostile and damaged files: each is an error that names the problem, and none costs much.

use std::fs::{self, OpenOptions};
use std::time::SystemTime;

use crate::support::{array, find, given, open, open_npy, patch, zip};
use safetensors_core::{self as core, TensorSource};
use safetensors_formats::npz::Archive;
use safetensors_formats::{Error, ErrorKind, Limits, Result, npy};
use zip::CompressionMethod::{Deflated, Stored};

/// Opens an archive, checks it, opens its first array and reads it.
fn read(archive: Vec<u8>) -> Result<Vec<u8>> {
    let archive = open(archive)?;
    archive.check()?;
    Ok(archive.array_at(0)?.read()?.bytes().to_vec())
}

/// Reads it without the check, as a stream.
fn read_unchecked(archive: Vec<u8>) -> Result<Vec<u8>> {
    Ok(given(&open(archive)?.array_at(0)?)?.0)
}

/// An archive with a member and sizes that can be found: 3,000 bytes of data.
fn victim(method: zip::CompressionMethod) -> (Vec<u8>, Vec<u8>) {
    let data: Vec<u8> = (0..3000_u32).map(|i| (i * i % 251) as u8).collect();
    let file = array("|u1", true, "(30, 100)", &data);
    (zip(method, &[("a.npy", &file)]), data)
}

/// Where the entry of the only member is in the list of members.
fn entry(archive: &[u8]) -> usize {
    find(archive, b"PK\x01\x02")
}

#[test]
fn files_that_are_no_archives() {
    for (file, problem) in [
        (vec![], "in.npz: "),
        (b"PK\x03\x04".to_vec(), "in.npz: "),
        (vec![0; 100_000], "in.npz: "),
        (array("<f4", false, "(1,)", &[0; 4]), "in.npz: "),
    ] {
        let error = open(file).unwrap_err();
        assert!(
            error.to_string().starts_with(problem) && error.file() == Some("in.npz"),
            "{error}"
        );
    }
}

#[test]
fn a_flipped_byte_is_an_error_or_changes_nothing_that_is_read() {
    for method in [Stored, Deflated] {
        let (whole, _) = victim(method);
        let expected = read(whole.clone()).unwrap();
        let mut found = 0;
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            let outcomes = [read(damaged.clone()), read_unchecked(damaged)];
            for outcome in outcomes {
                match outcome {
                    Ok(bytes) => assert!(bytes == expected, "byte {at} of {}", whole.len()),
                    Err(error) => {
                        found += 1;
                        assert_eq!(error.file(), Some("in.npz"), "{error}");
                    }
                }
            }
        }
        assert!(found > whole.len(), "most bytes count: {found} of {}", 2 * whole.len());
    }
}

/// The problem, the archive, and the text of the error.
type Case = (&'static str, Vec<u8>, &'static str);

fn cases() -> Vec<Case> {
    let u16 = |value: u16| value.to_le_bytes();
    let u32 = |value: u32| value.to_le_bytes();
    let mut cases: Vec<Case> = Vec::new();

    let huge = array("|u1", false, "(4000000000,)", &[0; 50]);
    let mut file = zip(Deflated, &[("a.npy", &huge)]);
    let at = entry(&file);
    patch(&mut file, at + 24, &u32(4_000_000_000 + huge.len() as u32 - 50));
    cases.push((
        "claims what its shape asks for and its bytes cannot become",
        file,
        "claims 4000000",
    ));

    let inflating = array("|u1", false, "(10,)", &[7; 100_000]);
    let mut file = zip(Deflated, &[("a.npy", &inflating)]);
    let at = entry(&file);
    patch(&mut file, at + 24, &u32(inflating.len() as u32 - 99_990));
    cases.push(("becomes more than it claims", file, "larger than its declared uncompressed size"));

    let file = zip(Deflated, &[("a.npy", &inflating)]);
    cases.push((
        "has more data than its shape asks for",
        file,
        "tensor \"a\": the array has 100000 bytes, but its shape asks for 10",
    ));

    let short = array("<f8", false, "(100,)", &[7; 10]);
    let file = zip(Deflated, &[("a.npy", &short)]);
    cases.push((
        "has less data than its shape asks for",
        file,
        "tensor \"a\": the array has 10 bytes, but its shape asks for 800",
    ));

    let mut file = zip(Deflated, &[("a.npy", &short)]);
    let at = entry(&file);
    patch(&mut file, at + 24, &u32(short.len() as u32 + 790));
    cases.push(("becomes less than it claims", file, "the member is shorter than it says"));

    let len = victim(Stored).0.len() as u32;
    for (what, method, changes, problem) in [
        (
            "claims more than its bytes can become, and more than its shape asks for",
            Deflated,
            &[(24, &u32(u32::MAX - 1)[..])][..],
            "in.npz: tensor \"a\": the member claims 4294967294 bytes, but its ",
        ),
        (
            "reaches past the end",
            Stored,
            &[(20, &u32(1 << 30)), (24, &u32(1 << 30))],
            "in.npz: tensor",
        ),
        ("lies in the list of members", Stored, &[(42, &u32(len - 10))], "in.npz: "),
        (
            "has another checksum, stored",
            Stored,
            &[(16, &u32(7))],
            "tensor \"a\": Invalid checksum",
        ),
        (
            "has another checksum, deflated",
            Deflated,
            &[(16, &u32(7))],
            "tensor \"a\": Invalid checksum",
        ),
        (
            "is encrypted",
            Stored,
            &[(8, &u16(1))],
            "tensor \"a\": unsupported Zip archive: Password required",
        ),
        ("is compressed by bzip2", Stored, &[(10, &u16(12))], "in.npz: tensor \"a\": "),
    ] {
        let (mut file, _) = victim(method);
        let at = entry(&file);
        changes.iter().for_each(|(offset, bytes)| patch(&mut file, at + offset, bytes));
        cases.push((what, file, problem));
    }

    let one = array("|u1", false, "(1,)", &[1]);
    let mut file = zip(Stored, &[("a.npy", &one), ("b.npy", &one)]);
    let second = file.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    patch(&mut file, second + 42, &u32(0));
    cases.push(("two members share their bytes", file, "in.npz: members of the archive overlap"));

    let mut file = zip(Stored, &[("a.npy", &one)]);
    let end = find(&file, b"PK\x05\x06");
    patch(&mut file, end + 8, &u16(0xfffe));
    patch(&mut file, end + 10, &u16(0xfffe));
    cases.push(("claims 65,534 members", file, "in.npz: "));

    let mut file = zip(Stored, &[("a.npy", &one), ("b.npy", &one)]);
    for at in 0..file.len() - 5 {
        if file[at..].starts_with(b"b.npy") {
            file[at] = b'a';
        }
    }
    cases.push(("two members have one name", file, "in.npz: two members of the archive have the"));

    for (what, member, problem) in [
        ("is no array", &b"hello"[..], "tensor \"a\": not a .npy file"),
        ("is empty", b"", "tensor \"a\": not a .npy file"),
        ("ends in its header", b"\x93NUMPY\x01\x00\x76\x00{'descr", "only 7 are there"),
        (
            "has a header of 4 GiB",
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
            "over the limit of 1048576",
        ),
    ] {
        cases.push((what, zip(Deflated, &[("a.npy", member)]), problem));
    }

    let booleans = array("|b1", true, "(2, 2)", &[0, 1, 2, 1]);
    let file = zip(Deflated, &[("a.npy", &booleans)]);
    let problem = "in.npz: tensor \"a\": element 1 of a BOOL tensor should be 0 or 1, found 2";
    cases.push(("holds a boolean of 2", file, problem));

    // More than 32 bits count.
    let far = if usize::BITS < 64 { "found 1099511627776" } else { "overflows 64 bits" };
    let file = array("<f8", false, "(1099511627776, 1099511627776)", &[]);
    cases.push(("overflows 64 bits by two", zip(Stored, &[("a.npy", &file)]), far));
    let sizes = "(1073741824, 1073741824, 1073741824)";
    let file = zip(Stored, &[("a.npy", &array("<f8", false, sizes, &[]))]);
    let problem = "[1073741824, 1073741824, 1073741824] overflows 64 bits";
    cases.push(("overflows 64 bits", file, problem));
    let file = zip(Stored, &[("a.npy", &array("<f8", true, &sizes.replace(')', ", 0)"), &[]))]);
    cases.push(("overflows 64 bits but for a zero", file, "overflows 64 bits"));
    cases
}

#[test]
fn hostile_archives_are_refused_with_the_reason() {
    for (what, file, problem) in cases() {
        let error = read(file.clone()).expect_err(what);
        assert_eq!(error.file(), Some("in.npz"), "{what}: {error}");
        assert!(error.to_string().contains(problem), "{what}: {error}");
        // Also without the check, which alone finds members that share bytes.
        if !what.contains("share") {
            let error = read_unchecked(file).expect_err(what);
            assert_eq!(error.file(), Some("in.npz"), "{what}: {error}");
        }
    }
}

#[test]
fn limits_bound_the_members_of_an_archive() {
    let one = array("|u1", false, "(1,)", &[1]);
    let names: Vec<_> = (0..100).map(|i| format!("{i}.npy")).collect();
    let members: Vec<_> = names.iter().map(|name| (name.as_str(), &*one)).collect();
    let file = zip(Stored, &members);
    let opened = |change: &dyn Fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        Archive::from_source(file.clone(), "in.npz", &limits)
    };
    assert_eq!(opened(&|limits| limits.members = 100).unwrap().names().len(), 100);
    let error = opened(&|limits| limits.members = 99).unwrap_err();
    assert!(
        matches!(error.other(), Some(ErrorKind::TooManyMembers { limit: 99, found: 100 })),
        "{error}"
    );
    let error = opened(&|limits| limits.directory_bytes = 4000).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::DirectoryTooLong { limit: 4000 })), "{error}");
    assert!(opened(&|limits| limits.directory_bytes = 100_000).is_ok());
    let error = opened(&|limits| limits.header_bytes = 10).unwrap().array("7").unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::HeaderTooLong { limit: 10, .. })), "{error}");
}

#[test]
fn two_arrays_of_one_name_can_be_read_only_by_position() {
    let (one, two) = (array("|u1", false, "()", &[1]), array("|u1", false, "()", &[2]));
    let archive = open(zip(Stored, &[("a.npy", &one), ("a", &two), ("folder/", b"")])).unwrap();
    assert!(archive.names().eq(["a", "a"]));
    let error = archive.array("a").unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::DuplicateArray)), "{error}");
    assert_eq!(archive.array_at(1).unwrap().read().unwrap().bytes(), [2]);
}

#[test]
fn an_npy_file_of_another_length_is_refused() {
    for (data, found) in [(&[0; 7][..], 7), (&[0; 9], 9), (&[], 0)] {
        let error = open_npy(array("<f4", false, "(2,)", data)).unwrap_err();
        let expected = format!("a.npy: the array has {found} bytes, but its shape asks for 8");
        assert_eq!(error.to_string(), expected);
    }
    let booleans = open_npy(array("|b1", false, "(3,)", &[0, 1, 9])).unwrap();
    let error = booleans.read().unwrap_err();
    assert!(matches!(error.kind(), core::ErrorKind::InvalidBool { index: 2, found: 9 }), "{error}");
    assert_eq!(error.file(), Some("a.npy"));
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (npy, npz) = (dir.path().join("a.npy"), dir.path().join("a.npz"));
    let file = array("|u1", false, "(3,)", &[1, 2, 3]);
    fs::write(&npy, &file).unwrap();
    fs::write(&npz, zip(Stored, &[("a.npy", &file)])).unwrap();
    for path in [&npy, &npz] {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        // Long ago, so that the change is certain to be at another time.
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let array = if path == &npy {
            npy::Array::open(path).unwrap()
        } else {
            Archive::open(path).unwrap().array("a").unwrap()
        };
        assert_eq!(given(&array).unwrap().0, [1, 2, 3]);
        file.set_modified(SystemTime::now()).unwrap();
        let error = array.write_to(&mut |_| Ok(())).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("the file has changed since it was opened: it was"), "{message}");
        assert_eq!(error.file(), path.to_str());
    }
}

#[test]
fn a_path_that_is_no_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.npz");
    for error in [Archive::open(&missing).unwrap_err(), npy::Array::open(&missing).unwrap_err()] {
        assert_eq!(error.file(), missing.to_str());
        let system = std::fs::metadata(&missing).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: {system}", missing.display()));
    }
    let error = Archive::open(dir.path()).unwrap_err();
    assert!(error.to_string().ends_with("expected a regular file, found a directory"), "{error}");
}

#[test]
fn errors_show_hostile_names_escaped() {
    let file = zip(Stored, &[("\x1b[31m\n.npy", b"hello")]);
    let error = read(file).unwrap_err();
    let expected = "in.npz: tensor \"\\u{1b}[31m\\n\": not a .npy file";
    assert_eq!(error.to_string(), expected);
    let error: Error = error;
    assert_eq!(error.to_string(), expected);
}
