//! Files changed after they were written: their metadata, the names of their tensors, and which tensors they have.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use safetensors_core::edit::{Edit, Edited, recover};
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, Metadata, Order, Result, SafeTensors, SaveOptions, Sink, TensorSource,
    TensorView, save,
};
use tempfile::{TempDir, tempdir};

static DATA: [u8; 8192] = {
    let mut data = [0; 8192];
    let mut i = 0;
    while i < data.len() {
        data[i] = (i % 251) as u8;
        i += 1;
    }
    data
};

/// A U8 tensor of so many bytes, whose values depend on `seed`.
fn bytes(len: &usize, seed: usize) -> TensorView<'_> {
    TensorView::new(Dtype::U8, std::slice::from_ref(len), &DATA[seed..seed + len]).unwrap()
}

/// A file of the tensors `a` (3 bytes), `b` (5) and `c` (none), in this order, with metadata.
fn file_with(options: SaveOptions) -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let tensors = [("a", bytes(&3, 0)), ("b", bytes(&5, 10)), ("c", bytes(&0, 0))];
    save(&path, tensors, &options.metadata([("k", "v")])).unwrap();
    (directory, path)
}

/// Such a file whose header has room.
fn roomy_file() -> (TempDir, PathBuf) {
    file_with(SaveOptions::new().align(4096))
}

fn parse(path: &Path) -> SafeTensors<Vec<u8>> {
    SafeTensors::parse(fs::read(path).unwrap()).unwrap()
}

fn names(path: &Path) -> Vec<String> {
    parse(path).tensors().map(|tensor| tensor.name().to_owned()).collect()
}

/// Asserts that an edit is refused, by the dry run and when it is made, and that nothing has happened.
#[track_caller]
fn refused(path: &Path, edit: impl Fn(Edit<'static>) -> Edit<'static>) -> Error {
    let before = fs::read(path).unwrap();
    let dry = edit(Edit::open(path).unwrap()).dry_run().unwrap_err();
    let error = edit(Edit::open(path).unwrap()).apply().unwrap_err();
    assert_eq!(dry.to_string(), error.to_string());
    assert_eq!(error.file(), path.to_str());
    assert_eq!(fs::read(path).unwrap(), before);
    assert_eq!(support::names_in(path.parent().unwrap()), ["model.safetensors"]);
    error
}

#[derive(Clone, Debug)]
struct Model {
    order: Vec<String>,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    metadata: Metadata,
}

const DTYPES: [Dtype; 4] = [Dtype::F64, Dtype::F32, Dtype::I16, Dtype::U8];

fn some_tensors() -> impl Strategy<Value = Vec<(Dtype, Vec<usize>, Vec<u8>)>> {
    let one = (0..DTYPES.len(), prop::collection::vec(0..4_usize, 0..3), any::<u8>());
    let one = one.prop_map(|(dtype, shape, seed)| {
        let len = safetensors_core::shape::byte_len(DTYPES[dtype], &shape).unwrap();
        (DTYPES[dtype], shape, (0..len).map(|i| (i as u8).wrapping_add(seed)).collect())
    });
    prop::collection::vec(one, 0..7)
}

fn some_metadata() -> impl Strategy<Value = Metadata> {
    prop::collection::btree_map("[a-c]", "[x\"é]{0,40}", 0..3)
}

proptest! {
    /// Against a model that has the tensors in a map.
    #[test]
    fn any_edit_does_what_it_says(
        old in some_tensors(),
        old_metadata in some_metadata(),
        added in some_tensors(),
        fates in prop::collection::vec(0..4_usize, 7),
        (set, unset, clear) in (some_metadata(), prop::collection::vec("[a-c]", 0..2), prop::bool::weighted(0.1)),
        (align, given, in_place) in (3..13_u32, any::<bool>(), prop::bool::weighted(0.8)),
    ) {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let order = if given { Order::Given } else { Order::Alignment };
        let options = SaveOptions::new().order(order).align(1 << align).durable(false).metadata(old_metadata.clone());
        let views = old.iter().enumerate().map(|(i, (dtype, shape, bytes))| {
            (format!("t{i}"), TensorView::new(*dtype, shape, bytes).unwrap())
        });
        save(&path, views, &options).unwrap();
        let before = parse(&path);

        // What becomes of each tensor: it stays, it stays, it goes, or it gets the name of the next one that does.
        let name_at = |i: usize| format!("t{i}");
        let removed: Vec<String> = (0..old.len()).filter(|i| fates[*i] == 2).map(name_at).collect();
        let rotated: Vec<usize> = (0..old.len()).filter(|i| fates[*i] == 3).collect();
        let next = |at: usize| name_at(rotated[(at + 1) % rotated.len()]);
        let renamed: BTreeMap<String, String> = rotated.iter().enumerate().map(|(at, i)| (name_at(*i), next(at))).collect();

        let mut model = Model { order: Vec::new(), tensors: BTreeMap::new(), metadata: old_metadata };
        for tensor in before.tensors().filter(|tensor| !removed.contains(&tensor.name().to_owned())) {
            let name = renamed.get(tensor.name()).cloned().unwrap_or_else(|| tensor.name().to_owned());
            let data = before.view(tensor.name()).unwrap().data().to_vec();
            model.tensors.insert(name.clone(), (tensor.dtype(), tensor.shape().to_vec(), data));
            model.order.push(name);
        }
        let added: Vec<_> = added.iter().enumerate().map(|(i, tensor)| {
            // A name that has become free can be taken again.
            (removed.get(i).cloned().unwrap_or_else(|| format!("new {i}")), tensor)
        }).collect();
        for (name, tensor) in &added {
            model.tensors.insert(name.clone(), (*tensor).clone());
            model.order.push(name.clone());
        }
        if clear {
            model.metadata.clear();
        }
        model.metadata.extend(set.clone());
        unset.iter().for_each(|key| { model.metadata.remove(key); });

        let mut edit = Edit::open(&path).unwrap().in_place(in_place).durable(false);
        if clear {
            edit = edit.clear_metadata();
        }
        let new = added.iter().map(|(name, (dtype, shape, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape, bytes).unwrap())
        });
        let edit = edit.set_metadata(set).remove_metadata(unset).rename(renamed).remove(removed).append(new);
        let dry = edit.dry_run().unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), before.bytes().clone());
        let done = edit.apply().unwrap();
        prop_assert_eq!(done, dry);

        let after = parse(&path);
        prop_assert_eq!(after.metadata(), &model.metadata);
        prop_assert_eq!(after.header().len(), model.order.len());
        for (name, (dtype, shape, data)) in &model.tensors {
            let view = after.view(name).unwrap();
            prop_assert_eq!((view.dtype(), view.shape(), view.data()), (*dtype, &shape[..], &data[..]), "{}", name);
        }
        let full = |name: &&str| after.header().get(name).unwrap().byte_len() > 0;
        let order: Vec<&str> = after.tensors().map(|tensor| tensor.name()).filter(full).collect();
        prop_assert_eq!(order, model.order.iter().map(String::as_str).filter(full).collect::<Vec<_>>());
        prop_assert_eq!(after.header().data_start() % (1 << align), 0);
        match done {
            Edited::Unchanged => prop_assert_eq!(after.bytes(), before.bytes()),
            Edited::InPlace => {
                prop_assert!(in_place);
                prop_assert_eq!(after.header().data_start(), before.header().data_start());
                let data = before.header().data_start() as usize..;
                prop_assert_eq!(&after.bytes()[data.clone()], &before.bytes()[data]);
            }
            Edited::Rewritten => {}
        }
        prop_assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
        // Made once more, nothing is left to be done.
        prop_assert_eq!(Edit::open(&path).unwrap().set_metadata(model.metadata).apply().unwrap(), Edited::Unchanged);
    }
}

/// The header is written in place as long as its text fits, to the byte.
#[test]
fn in_place_as_long_as_it_fits() {
    for order in [0, 1] {
        let (_directory, path) = roomy_file();
        let value = |len: usize| "x".repeat(len);
        // The longest value that fits follows from the length of the text with an empty one.
        Edit::open(&path).unwrap().set_metadata([("new", "")]).apply().unwrap();
        let text = parse(&path).bytes()[8..4096].trim_ascii_end().len();
        let room = 4096 - 8 - text;
        let cases = [(room, Edited::InPlace), (room + 1, Edited::Rewritten)];
        let (len, expected) = cases[order];
        let edit = Edit::open(&path).unwrap().set_metadata([("new", value(len))]);
        assert_eq!(edit.dry_run().unwrap(), expected);
        assert_eq!(edit.apply().unwrap(), expected);
        let after = parse(&path);
        assert_eq!(after.metadata()["new"].len(), len);
        assert_eq!(after.header().data_start(), if expected == Edited::InPlace { 4096 } else { 8192 });
        assert_eq!(after.view("b").unwrap(), bytes(&5, 10));
    }
}

#[test]
fn names_swap_and_move_along() {
    let (_directory, path) = roomy_file();
    let rename = |names: &[(&str, &str)]| Edit::open(&path).unwrap().rename(names.iter().copied()).apply().unwrap();
    assert_eq!(rename(&[("a", "b"), ("b", "a")]), Edited::InPlace);
    assert_eq!(parse(&path).view("a").unwrap(), bytes(&5, 10));
    assert_eq!(rename(&[("a", "c"), ("c", "d"), ("b", "a")]), Edited::InPlace);
    assert_eq!(parse(&path).view("c").unwrap(), bytes(&5, 10));
    assert_eq!(parse(&path).view("a").unwrap(), bytes(&3, 0));
    assert_eq!(parse(&path).view("d").unwrap(), bytes(&0, 0));
    assert_eq!(rename(&[("a", "a")]), Edited::Unchanged);
    let long = "long ".repeat(1000);
    assert_eq!(rename(&[("a", &long)]), Edited::Rewritten);
    assert_eq!(parse(&path).view(&long).unwrap(), bytes(&3, 0));
}

#[test]
fn edits_that_cannot_be_made() {
    let (_directory, path) = roomy_file();
    let error = refused(&path, |edit| edit.rename([("x", "y")]));
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound) && error.tensor() == Some("x"), "{error}");
    let error = refused(&path, |edit| edit.remove(["x"]));
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound) && error.tensor() == Some("x"), "{error}");
    let error = refused(&path, |edit| edit.remove(["a"]).rename([("a", "x")]));
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound) && error.tensor() == Some("a"), "{error}");
    let error = refused(&path, |edit| edit.rename([("a", "x"), ("a", "y")]));
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor) && error.tensor() == Some("a"), "{error}");
    for taken in ["b", "c"] {
        let error = refused(&path, |edit| edit.rename([("a", taken)]));
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor) && error.tensor() == Some(taken), "{error}");
    }
    let error = refused(&path, |edit| edit.append([("b", bytes(&1, 0))]));
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor) && error.tensor() == Some("b"), "{error}");
    let error = refused(&path, |edit| edit.rename([("a", "__metadata__")]));
    assert!(matches!(error.kind(), ErrorKind::ReservedName), "{error}");
    let error = refused(&path, |edit| edit.set_metadata([("k", "x".repeat(100_000_001))]));
    assert!(matches!(error.kind(), ErrorKind::HeaderTooLarge { limit: 100_000_000, .. }), "{error}");
    for align in [0, 3, 4, 8192] {
        let error = refused(&path, |edit| edit.align(align));
        assert!(matches!(error.kind(), ErrorKind::BadAlignment { found } if *found == align), "{error}");
    }
}

/// What it says and what it gives are two things.
struct Liar;

impl TensorSource for Liar {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &[10]
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        sink(&[1; 9])
    }
}

#[test]
fn an_appended_tensor_that_fails_leaves_the_old_file() {
    let (directory, path) = roomy_file();
    let before = fs::read(&path).unwrap();
    let error = Edit::open(&path).unwrap().remove(["a"]).append([("new", Liar)]).apply().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceLength { expected: 10, found: 9 }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("new"), path.to_str()));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn nothing_to_do_is_not_done() {
    let (_directory, path) = file_with(SaveOptions::new());
    // The same header in other words stays as it is too.
    let archive = parse(&path);
    let json = std::str::from_utf8(&archive.bytes()[8..archive.header().data_start() as usize]).unwrap();
    let pretty = json.trim_end().replace(":{", " : {\n\t");
    let whole = support::file_with(&pretty, &archive.bytes()[archive.header().data_start() as usize..]);
    fs::write(&path, &whole).unwrap();
    for in_place in [true, false] {
        let edit = Edit::open(&path).unwrap().in_place(in_place);
        let edit = edit.set_metadata([("k", "v")]).remove_metadata(["no such key"]).rename([("a", "a")]);
        assert_eq!(edit.dry_run().unwrap(), Edited::Unchanged);
        assert_eq!(edit.apply().unwrap(), Edited::Unchanged);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    Edit::open(&path).unwrap().clear_metadata().apply().unwrap();
    assert!(parse(&path).metadata().is_empty());
    assert_eq!(parse(&path).view("b").unwrap(), bytes(&5, 10));
}

/// Tensors without bytes come and go without the data being touched.
#[test]
fn only_the_header_knows_of_tensors_without_bytes() {
    let (_directory, path) = roomy_file();
    let edit = Edit::open(&path).unwrap().remove(["c"]).append([("d", bytes(&0, 0)), ("e", bytes(&0, 0))]);
    assert_eq!(edit.apply().unwrap(), Edited::InPlace);
    let mut after = names(&path);
    after.sort();
    assert_eq!(after, ["a", "b", "d", "e"]);

    let empty = path.with_file_name("empty.safetensors");
    save(&empty, [] as [(&str, TensorView<'_>); 0], &SaveOptions::new().align(4096)).unwrap();
    assert_eq!(Edit::open(&empty).unwrap().set_metadata([("k", "v")]).apply().unwrap(), Edited::InPlace);
    assert_eq!(Edit::open(&empty).unwrap().append([("a", bytes(&3, 0))]).apply().unwrap(), Edited::Rewritten);
    assert_eq!(parse(&empty).view("a").unwrap(), bytes(&3, 0));
    assert_eq!(Edit::open(&empty).unwrap().remove(["a"]).apply().unwrap(), Edited::Rewritten);
    assert!(parse(&empty).header().is_empty());
}

#[test]
fn new_tensors_follow_or_everything_is_sorted() {
    let numbers = [1.0_f32, 2.0];
    let append = |order| {
        let (_directory, path) = file_with(SaveOptions::new());
        let floats = TensorView::from_slice(&[2], &numbers).unwrap();
        let edit = Edit::open(&path).unwrap().order(order).remove(["c"]);
        edit.append([("z", floats), ("y", floats)]).append([("x", bytes(&1, 0))]).apply().unwrap();
        let aligned = |name: &str| {
            let archive = parse(&path);
            (archive.header().data_start() + archive.header().get(name).unwrap().data_offsets().start) % 4 == 0
        };
        assert_eq!(parse(&path).view("y").unwrap().data(), floats.data());
        (names(&path), aligned("z"))
    };
    let of = |names: [&str; 5]| names.map(str::to_owned).to_vec();
    assert_eq!(append(Order::Given), (of(["a", "b", "z", "y", "x"]), true));
    assert_eq!(append(Order::Alignment), (of(["y", "z", "a", "b", "x"]), true));
}

#[test]
fn the_order_and_the_alignment_of_a_file_can_be_mended() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let numbers = [1.0_f32, 2.0];
    let floats = TensorView::from_slice(&[2], &numbers).unwrap();
    save(&path, [("byte", bytes(&1, 0)), ("floats", floats)], &SaveOptions::new().order(Order::Given)).unwrap();
    assert_eq!(parse(&path).header().get("floats").unwrap().data_offsets(), 1..9);
    assert_eq!(Edit::open(&path).unwrap().order(Order::Alignment).apply().unwrap(), Edited::Rewritten);
    assert_eq!(names(&path), ["floats", "byte"]);
    assert_eq!(parse(&path).view("floats").unwrap(), floats);
    assert_eq!(parse(&path).view("byte").unwrap(), bytes(&1, 0));
    assert_eq!(Edit::open(&path).unwrap().order(Order::Alignment).apply().unwrap(), Edited::Unchanged);

    assert_eq!(Edit::open(&path).unwrap().align(1024).apply().unwrap(), Edited::Rewritten);
    assert_eq!(parse(&path).header().data_start(), 1024);
    assert_eq!(Edit::open(&path).unwrap().align(1024).apply().unwrap(), Edited::Unchanged);
    assert_eq!(Edit::open(&path).unwrap().align(64).apply().unwrap(), Edited::Unchanged);
    // From now on there is room.
    let edit = Edit::open(&path).unwrap().set_metadata([("key", "x".repeat(800))]);
    assert_eq!(edit.apply().unwrap(), Edited::InPlace);
}

#[test]
fn digests_stay_true() {
    use safetensors_core::digest::{self, Digest, RecordOptions, TensorDigests, VerifyOptions};

    let recorded = |path: &Path| {
        digest::verify(&Checkpoint::open(path).unwrap(), &VerifyOptions::new()).unwrap();
        let metadata = parse(path).metadata().clone();
        let names = TensorDigests::read(&metadata)
            .unwrap()
            .map(|record| record.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>());
        (names.unwrap_or_default(), metadata.contains_key("modelspec.hash_sha256"))
    };
    let (_directory, path) = roomy_file();
    digest::record(&path, &RecordOptions::new().sha256(true)).unwrap();
    let of = |names: &[&str], sha256| (names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), sha256);
    assert_eq!(recorded(&path), of(&["a", "b", "c"], true));

    let edit = |edit: &dyn Fn(Edit<'static>) -> Edit<'static>| edit(Edit::open(&path).unwrap()).apply().unwrap();
    assert_eq!(edit(&|edit| edit.rename([("a", "b"), ("b", "a"), ("c", "d")])), Edited::InPlace);
    assert_eq!(recorded(&path), of(&["a", "b", "d"], true));
    assert_eq!(edit(&|edit| edit.in_place(false).set_metadata([("k", "w")])), Edited::Rewritten);
    assert_eq!(recorded(&path), of(&["a", "b", "d"], true));
    // A tensor in the place of one that had a digest has none.
    assert_eq!(edit(&|edit| edit.remove(["a"]).append([("a", bytes(&4, 50))])), Edited::Rewritten);
    assert_eq!(recorded(&path), of(&["b", "d"], false));
    let new: TensorDigests = [("a", Digest::of(&DATA[50..54]))].into_iter().collect();
    edit(&|edit| edit.remove(["d", "b"]).set_metadata([(digest::KEY, new.to_text())]));
    assert_eq!(recorded(&path), of(&["a"], false));
    edit(&|edit| edit.remove(["a"]));
    assert_eq!(recorded(&path), of(&[], false));
    assert!(!parse(&path).metadata().contains_key(digest::KEY));

    // What cannot be read is left alone.
    edit(&|edit| edit.append([("a", bytes(&3, 0))]).set_metadata([(digest::KEY, "?")]));
    edit(&|edit| edit.rename([("a", "b")]));
    assert_eq!(parse(&path).metadata()[digest::KEY], "?");
}

/// More than one piece, with every tensor at an odd place.
#[test]
fn large_tensors_move() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let big: Vec<Vec<u8>> =
        (1..=5_usize).map(|i| (0..700_001 * i).map(|at| (at % (250 + i)) as u8).collect()).collect();
    let shapes: Vec<[usize; 1]> = big.iter().map(|bytes| [bytes.len()]).collect();
    let views = |keep: &[usize]| -> Vec<(String, TensorView<'_>)> {
        keep.iter().map(|i| (format!("t{i}"), TensorView::new(Dtype::U8, &shapes[*i], &big[*i]).unwrap())).collect()
    };
    save(&path, views(&[0, 1, 2, 3, 4]), &SaveOptions::new()).unwrap();
    Edit::open(&path).unwrap().remove(["t0", "t3"]).apply().unwrap();
    let archive = parse(&path);
    assert_eq!(archive.header().len(), 3);
    for (name, view) in views(&[1, 2, 4]) {
        assert!(archive.view(&name).unwrap() == view, "{name}");
    }
}

/// A file that is not what it should be is not touched, and says why.
#[test]
fn malformed_files_are_not_edited() {
    let directory = tempdir().unwrap();
    let path = support::write(directory.path(), "model.safetensors", support::file("{} x", 0));
    let error = Edit::open(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Json { .. }), "{error}");
    assert_eq!(error.file(), path.to_str());
    assert!(!recover(&path).unwrap());
    fs::write(&path, support::file("{}", 1)).unwrap();
    assert!(matches!(Edit::open(&path).unwrap_err().kind(), ErrorKind::TrailingData { expected: 0, found: 1 }));
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn what_is_no_file_is_not_edited() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("missing");
    for result in [Edit::open(&path).map(drop), recover(&path).map(drop)] {
        let error = result.unwrap_err();
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        assert!(matches!(error.kind(), ErrorKind::Io(error) if missing(error)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    let error = Edit::open(directory.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotAFile { found: "a directory" }), "{error}");
    assert!(support::names_in(directory.path()).is_empty());
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn edit_twice(path: &Path) {
        let edit = Edit::open(path).unwrap().set_metadata([("edited", "in place")]);
        assert_eq!(edit.apply().unwrap(), Edited::InPlace);
        assert_eq!(parse(path).metadata()["edited"], "in place");
        assert_eq!(Edit::open(path).unwrap().remove(["a"]).apply().unwrap(), Edited::Rewritten);
        assert_eq!(names(path), ["b", "c"]);
    }

    #[test]
    fn the_permissions_stay() {
        for mode in [0o600, 0o640, 0o666, 0o755] {
            let (directory, path) = roomy_file();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            edit_twice(&path);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
            assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
        }
    }

    #[test]
    fn the_owner_stays() {
        let (_directory, path) = roomy_file();
        if std::os::unix::fs::chown(&path, Some(12345), Some(54321)).is_err() {
            eprintln!("skipped: only an administrator can give files away");
            return;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        edit_twice(&path);
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (12345, 54321, 0o640));
    }

    #[test]
    fn links_are_followed() {
        let (directory, path) = roomy_file();
        let folder = directory.path().join("snapshots");
        fs::create_dir(&folder).unwrap();
        symlink("../model.safetensors", folder.join("link")).unwrap();
        edit_twice(&folder.join("link"));
        assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(support::names_in(&folder), ["link"]);
        assert_eq!(support::names_in(directory.path()), ["model.safetensors", "snapshots"]);
    }

    #[test]
    fn in_place_is_the_same_file_and_rewritten_is_another() {
        let (directory, path) = roomy_file();
        let other = directory.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        edit_twice(&path);
        assert_eq!(names(&other), ["a", "b", "c"]);
        assert_eq!(parse(&other).metadata()["edited"], "in place");
        assert_ne!(fs::metadata(&path).unwrap().ino(), fs::metadata(&other).unwrap().ino());
    }

    #[test]
    fn only_one_edits_at_a_time() {
        let (_directory, path) = roomy_file();
        let first = Edit::open(&path).unwrap();
        for result in [Edit::open(&path).map(drop), recover(&path).map(drop)] {
            let error = result.unwrap_err();
            let busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
            assert!(matches!(error.kind(), ErrorKind::Io(error) if busy(error)), "{error}");
            assert_eq!(error.file(), path.to_str());
        }
        assert_eq!(Checkpoint::open(&path).unwrap().len(), 3, "readers are let in");
        first.remove(["a"]).apply().unwrap();
        Edit::open(&path).unwrap();
    }

    #[test]
    fn special_files_are_refused() {
        let directory = tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        support::make_fifo(&fifo);
        symlink("/dev/null", directory.path().join("device")).unwrap();
        for name in ["fifo", "device"] {
            let path = directory.path().join(name);
            let error = support::must_not_hang(move || Edit::open(path).map(drop)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::NotAFile { found: "a special file" }), "{error}");
        }
    }

    /// The administrator may write everywhere: then the edits must work.
    #[test]
    fn files_and_directories_that_may_not_be_written_to() {
        let denied = |error: &Error| matches!(error.kind(), ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied);
        let (directory, path) = roomy_file();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let allowed = fs::OpenOptions::new().write(true).open(&path).is_ok();
        match Edit::open(&path) {
            Ok(_) => assert!(allowed),
            Err(error) => assert!(!allowed && denied(&error) && error.file() == path.to_str(), "{error}"),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

        let before = fs::read(&path).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
        for edit in [Edit::clear_metadata, |edit: Edit<'static>| edit.remove(["a"])] {
            match edit(Edit::open(&path).unwrap()).apply() {
                Ok(_) => assert!(allowed),
                Err(error) => {
                    assert!(!allowed && denied(&error) && error.file() == path.to_str(), "{error}");
                    assert_eq!(fs::read(&path).unwrap(), before);
                }
            }
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
    }
}
