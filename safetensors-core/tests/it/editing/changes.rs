//! The changes of an edit, the parts that it keeps, and whether it makes a new file.

use safetensors_core::edit::Edited;
use safetensors_testing::tensors::bytes_by;

use super::{DATA, bytes, file_of, names, parse, refused, roomy_file};
use crate::support::*;

/// The header is written in place if its text fits, exact to the byte.
#[test]
fn in_place_as_long_as_it_fits() {
    for order in [0, 1] {
        let (_directory, path) = roomy_file();
        let value = |len: usize| "x".repeat(len);
        // The length of the header with an empty value determines the longest value that fits.
        Edit::open(&path).unwrap().set_metadata([("new", "")]).apply().unwrap();
        let text = parse(&path).source()[8..4096].trim_ascii_end().len();
        let room = 4096 - 8 - text;
        let cases = [(room, Edited::InPlace), (room + 1, Edited::Rewritten)];
        let (len, expected) = cases[order];
        let edit = Edit::open(&path).unwrap().in_place(true);
        let edit = edit.set_metadata([("new", value(len))]);
        assert_eq!(edit.dry_run().unwrap(), expected);
        assert_eq!(edit.apply().unwrap(), expected);
        let after = parse(&path);
        assert_eq!(after.metadata()["new"].len(), len);
        assert_eq!(
            after.header().data_start(),
            if expected == Edited::InPlace { 4096 } else { 8192 }
        );
        assert_eq!(after.view("b").unwrap(), bytes(&5, 10));
    }
}

/// Readers need not know how an edit was made, and a file system can share all blocks of data.
#[test]
fn a_header_that_fits_gives_the_same_file_in_place_and_rewritten() {
    for align in [8, 64, 4096] {
        let made = |in_place| {
            let (_directory, path) = file_of(SaveOptions::new().align(align));
            let edit = Edit::open(&path).unwrap().in_place(in_place);
            let edit = edit.clear_metadata().rename([("a", "b"), ("b", "a")]);
            (edit.apply().unwrap(), fs::read(&path).unwrap())
        };
        let ((anew, new), (in_place, same)) = (made(false), made(true));
        assert_eq!((anew, in_place), (Edited::Rewritten, Edited::InPlace));
        assert!(new == same, "{align}");
    }
}

/// Other programs save files with unaligned data.
#[test]
fn a_new_file_aligns_its_data() {
    let directory = tempdir().unwrap();
    let json = r#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"é":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}}"#;
    assert!(!json.len().is_multiple_of(8));
    for (in_place, expected) in
        [(true, 8 + json.len()), (false, 8 + json.len().next_multiple_of(8))]
    {
        let path = write(directory.path(), "m.safetensors", file_with(json, b"abc"));
        let edit = Edit::open(&path).unwrap().in_place(in_place).rename([("w", "v")]);
        let edited = edit.apply().unwrap();
        assert_eq!(edited == Edited::InPlace, in_place);
        assert_eq!(parse(&path).header().data_start(), expected as u64);
        assert_eq!(parse(&path).view("v").unwrap().data(), b"abc");
    }
}

#[test]
fn impossible_edits_are_refused() {
    type Change = fn(Edit<'static>) -> Edit<'static>;
    let (_directory, path) = roomy_file();
    let cases: [(Change, ErrorKind, &str); 8] = [
        (|edit| edit.rename([("x", "y")]), ErrorKind::TensorNotFound, "x"),
        (|edit| edit.remove(["x"]), ErrorKind::TensorNotFound, "x"),
        (|edit| edit.remove(["a"]).rename([("a", "x")]), ErrorKind::TensorNotFound, "a"),
        (|edit| edit.rename([("a", "x"), ("a", "y")]), ErrorKind::DuplicateTensor, "a"),
        (|edit| edit.rename([("a", "b")]), ErrorKind::DuplicateTensor, "b"),
        (|edit| edit.rename([("a", "c")]), ErrorKind::DuplicateTensor, "c"),
        (|edit| edit.append([("b", bytes(&1, 0))]), ErrorKind::DuplicateTensor, "b"),
        (|edit| edit.rename([("a", "__metadata__")]), ErrorKind::ReservedName, "__metadata__"),
    ];
    for (change, kind, tensor) in cases {
        let error = refused(&path, change);
        assert_eq!(format!("{:?}", error.kind()), format!("{kind:?}"));
        assert_eq!(error.tensor(), Some(tensor));
    }
    let error = refused(&path, |edit| edit.set_metadata([("k", "x".repeat(100_000_001))]));
    let kind = error.kind();
    assert!(matches!(kind, ErrorKind::HeaderTooLarge { limit: 100_000_000, .. }), "{error}");
}

#[test]
fn an_appended_tensor_that_fails_leaves_the_old_file() {
    let too_short = bytes_by(10, |sink| sink(&[1; 9]));
    let (directory, path) = roomy_file();
    let before = fs::read(&path).unwrap();
    let error = refused!(
        Edit::open(&path).unwrap().remove(["a"]).append([("new", too_short)]).apply(),
        ErrorKind::SourceLength { expected: 10, found: 9 }
    );
    assert_eq!((error.tensor(), error.file()), (Some("new"), path.to_str()));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn nothing_to_do_is_not_done() {
    let (_directory, path) = file_of(SaveOptions::new());
    // A header with the same meaning and other text is not rewritten either.
    let archive = parse(&path);
    let json =
        std::str::from_utf8(&archive.source()[8..archive.header().data_start() as usize]).unwrap();
    let pretty = json.trim_end().replace(":{", " : {\n\t");
    let whole = file_with(&pretty, &archive.source()[archive.header().data_start() as usize..]);
    fs::write(&path, &whole).unwrap();
    for in_place in [true, false] {
        let edit = Edit::open(&path).unwrap().in_place(in_place);
        let edit =
            edit.set_metadata([("k", "v")]).remove_metadata(["no such key"]).rename([("a", "a")]);
        assert_eq!(edit.dry_run().unwrap(), Edited::Unchanged);
        assert_eq!(edit.apply().unwrap(), Edited::Unchanged);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    Edit::open(&path).unwrap().clear_metadata().apply().unwrap();
    assert!(parse(&path).metadata().is_empty());
    assert_eq!(parse(&path).view("b").unwrap(), bytes(&5, 10));
}

/// Tensors without bytes are added and removed without touching the data.
#[test]
fn tensors_without_bytes_change_only_the_header() {
    let (_directory, path) = roomy_file();
    let edit = Edit::open(&path).unwrap().in_place(true).remove(["c"]);
    let edit = edit.append([("d", bytes(&0, 0)), ("e", bytes(&0, 0))]);
    assert_eq!(edit.apply().unwrap(), Edited::InPlace);
    let mut after = names(&path);
    after.sort();
    assert_eq!(after, ["a", "b", "d", "e"]);

    let empty = path.with_file_name("empty.safetensors");
    save(&empty, [] as [(&str, TensorView<'_>); 0], &SaveOptions::new().align(4096)).unwrap();
    assert_eq!(
        Edit::open(&empty).unwrap().in_place(true).set_metadata([("k", "v")]).apply().unwrap(),
        Edited::InPlace
    );
    assert_eq!(
        Edit::open(&empty).unwrap().append([("a", bytes(&3, 0))]).apply().unwrap(),
        Edited::Rewritten
    );
    assert_eq!(parse(&empty).view("a").unwrap(), bytes(&3, 0));
    assert_eq!(Edit::open(&empty).unwrap().remove(["a"]).apply().unwrap(), Edited::Rewritten);
    assert!(parse(&empty).header().is_empty());
}

#[test]
fn new_tensors_follow() {
    let (_directory, path) = file_of(SaveOptions::new());
    let numbers = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
    let floats = TensorView::new(Dtype::F32, &[2], &numbers).unwrap();
    let edit = Edit::open(&path).unwrap().remove(["c"]);
    edit.append([("z", floats), ("y", floats)]).append([("x", bytes(&1, 0))]).apply().unwrap();
    assert_eq!(names(&path), ["a", "b", "z", "y", "x"]);
    assert_eq!(parse(&path).view("y").unwrap(), floats);
}

/// The operations that recompute or drop a record are tested in `records`.
#[test]
fn a_record_that_the_caller_sets_stays() {
    use safetensors_core::digest::{self, Digest, DigestOptions, TensorDigests};

    let (_directory, path) = roomy_file();
    let new: TensorDigests = [("a", Digest::compute(&DATA[50..54]))].into_iter().collect();
    let edit = Edit::open(&path).unwrap().remove(["a", "b", "c"]);
    let edit = edit.append([("a", bytes(&4, 50))]);
    edit.set_metadata([(digest::KEY, new.to_string())]).apply().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = DigestOptions::new().require_digests(true);
    digest::verify(&checkpoint, &options).unwrap();
    let malformed = Edit::open(&path).unwrap().set_metadata([(digest::KEY, "?")]);
    malformed.apply().unwrap();
    Edit::open(&path).unwrap().rename([("a", "b")]).apply().unwrap();
    assert_eq!(parse(&path).metadata()[digest::KEY], "?");
}

/// The tensors are larger than one piece, and each is at an odd offset.
#[test]
fn large_tensors_move() {
    let (_directory, path) = place("model.safetensors");
    let big: Vec<Vec<u8>> = (1..=5_usize)
        .map(|i| (0..700_001 * i).map(|at| (at % (250 + i)) as u8).collect())
        .collect();
    let shapes: Vec<[usize; 1]> = big.iter().map(|bytes| [bytes.len()]).collect();
    let views = |keep: &[usize]| -> Vec<(String, TensorView<'_>)> {
        keep.iter()
            .map(|i| (format!("t{i}"), TensorView::new(Dtype::U8, &shapes[*i], &big[*i]).unwrap()))
            .collect()
    };
    save(&path, views(&[0, 1, 2, 3, 4]), &SaveOptions::new()).unwrap();
    Edit::open(&path).unwrap().remove(["t0", "t3"]).apply().unwrap();
    let archive = parse(&path);
    assert_eq!(archive.header().len(), 3);
    for (name, view) in views(&[1, 2, 4]) {
        assert!(archive.view(&name).unwrap() == view, "{name}");
    }
}

/// Units and names of dimensions describe the tensor that they described before.
#[test]
fn attributes_follow_their_tensors() {
    let entry = |tensor: &str| (format!("attribute:{tensor}#units"), tensor.to_owned());
    let edited = |edit: fn(Edit<'static>) -> Edit<'static>| {
        let (_directory, path) = file_of(SaveOptions::new().metadata(["a", "b", "x"].map(entry)));
        edit(Edit::open(&path).unwrap()).apply().unwrap();
        let units = |name: &str| parse(&path).metadata().get(&entry(name).0).cloned();
        ["a", "b", "d", "x"].map(|name| units(name).unwrap_or_default())
    };
    let swapped = edited(|edit| edit.rename([("a", "b"), ("b", "a")]));
    assert_eq!(swapped, ["b", "a", "", "x"]);
    let removed = edited(|edit| edit.remove(["a"]).rename([("b", "d")]));
    assert_eq!(removed, ["", "", "b", "x"]);
    // An edit's own entry is about the new names, also if it is as before.
    let set = edited(|edit| {
        edit.rename([("a", "b"), ("b", "d")]).set_metadata([("attribute:b#units", "b")])
    });
    assert_eq!(set, ["", "b", "b", "x"]);
    let replaced = edited(|edit| edit.remove(["a"]).append([("a", bytes(&3, 7))]));
    assert_eq!(replaced, ["a", "b", "", "x"]);
}
