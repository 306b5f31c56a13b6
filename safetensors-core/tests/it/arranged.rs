//! Arranged tensors: their names, files and bytes, and how they meet other operations. The unit
//! tests compare the elements of random arrangements.

use safetensors_core::checkpoint::{Arranged, Computed};
use safetensors_core::digest;
use safetensors_core::lora::Adapter;
use safetensors_core::slice::{Index, RankPart};
use safetensors_testing::read_at::NotingSource;

use crate::support::odd::Odd;
use crate::support::*;

fn t(name: &str) -> Arranged {
    Arranged::tensor(name)
}

/// A file of tensors of I16 that count from `first` on.
fn file_of(tensors: &[(&str, &[usize], i16)], metadata: &[(&str, &str)]) -> Vec<u8> {
    let bufs = tensors.iter().map(|&(name, shape, first)| {
        let count = shape.iter().product::<usize>() as i16;
        (name, TensorBuf::from_vec(shape.to_vec(), (first..first + count).collect()).unwrap())
    });
    let options = SaveOptions::new().metadata(metadata.iter().copied());
    serialize(bufs.collect::<Vec<_>>().iter().map(|(name, buf)| (*name, buf)), &options).unwrap()
}

fn open(tensors: &[(&str, &[usize], i16)], metadata: &[(&str, &str)]) -> Checkpoint<Vec<u8>> {
    Checkpoint::from_source(file_of(tensors, metadata), "f").unwrap()
}

fn values<S: ReadAt>(checkpoint: &Checkpoint<S>, name: &str) -> Vec<i16> {
    checkpoint.tensor(name).unwrap().read().unwrap().into_vec().unwrap()
}

fn names<S>(checkpoint: &Checkpoint<S>) -> Vec<&str> {
    checkpoint.tensors().map(|tensor| tensor.name()).collect()
}

#[test]
fn names_are_used_up_and_others_stay() {
    let tensors: [(&str, &[usize], i16); 3] = [("a", &[2], 0), ("x", &[2, 2], 10), ("z", &[1], 90)];
    let ties = [("b", "x"), ("c", "x"), ("y", "z"), ("note", "kept")];
    let expert = |i: usize| t("x").slice(0, i);
    // Another name of a source becomes the tensor's, and a third stays another name.
    let split = open(&tensors, &ties).arranged([("x.1", expert(1)), ("x.0", expert(0))]).unwrap();
    assert_eq!(names(&split), ["a", "b", "x.1", "x.0", "z"]);
    assert_eq!(values(&split, "b"), [10, 11, 12, 13]);
    assert_eq!((values(&split, "x.1"), values(&split, "x.0")), (vec![12, 13], vec![10, 11]));
    let aliases: Vec<_> = split.aliases().map(|(name, it)| (name, it.name())).collect();
    assert_eq!(aliases, [("c", "b"), ("y", "z")]);
    assert_eq!(split.metadata()["note"], "kept");
    // The tensor stays if only another name is used up.
    let of_alias = open(&tensors, &ties).arranged([("b.t", t("b").transposed())]).unwrap();
    assert_eq!(names(&of_alias), ["a", "x", "b.t", "z"]);
    assert_eq!(of_alias.get("b").map(|it| it.name()), None);
    assert_eq!(of_alias.get("c").map(|it| it.name()), Some("x"));
    assert_eq!(values(&of_alias, "b.t"), [10, 12, 11, 13]);
    // A source has its own name again.
    let both = [("x", t("x").transposed()), ("b", t("b")), ("c", t("c")), ("v", expert(1))];
    let both = open(&tensors, &ties).arranged(both).unwrap();
    assert_eq!(names(&both), ["a", "x", "b", "c", "v", "z"]);
    assert_eq!(
        (values(&both, "x"), values(&both, "c")),
        (vec![10, 12, 11, 13], vec![10, 11, 12, 13])
    );
    let none = open(&tensors, &ties).arranged::<String>([]).unwrap();
    assert_eq!(names(&none), ["a", "x", "z"]);
}

#[test]
fn arrangements_that_do_not_fit_are_errors() {
    let tensors: [(&str, &[usize], i16); 3] =
        [("m", &[2, 3], 0), ("n", &[3, 2], 0), ("v", &[3], 0)];
    let fails = |arranged: Arranged| open(&tensors, &[("tied", "v")]).arranged([("new", arranged)]);
    let error = refused!(fails(t("mm")), ErrorKind::TensorNotFound);
    assert_eq!(error.similar(), ["m"]);
    let error = refused!(
        fails(Arranged::stack([t("m"), t("n")])),
        ErrorKind::WrongShape { expected, found } if (&**expected, &**found) == (&[1, 2, 3], &[1, 3, 2])
    );
    assert_eq!((error.file(), error.tensor()), (Some("f"), Some("n")));
    refused!(fails(Arranged::interleaved(0, [t("m"), t("n")])), ErrorKind::WrongShape { .. });
    refused!(fails(Arranged::concat(0, [t("m"), t("n")])), ErrorKind::WrongShape { .. });
    refused!(fails(Arranged::concat(0, [t("m"), t("v")])), ErrorKind::WrongShape { .. });
    refused!(fails(Arranged::concat(2, [t("m")])), ErrorKind::NoSuchDim { dim: 2, ndim: 2 });
    refused!(fails(t("v").transposed()), ErrorKind::NoSuchDim { dim: 1, ndim: 1 });
    refused!(fails(t("v").slice(1, ..)), ErrorKind::NoSuchDim { dim: 1, ndim: 1 });
    refused!(fails(t("v").slice(0, 3)), ErrorKind::IndexOutOfBounds { dim: 0, len: 3, .. });
    refused!(fails(t("v").slice(0, 1..5)), ErrorKind::IndexOutOfBounds { dim: 0, len: 3, .. });
    refused!(fails(t("v").slice(0, Index::ALL.step(0))), ErrorKind::ZeroStep { dim: 0 });
    refused!(fails(Arranged::stack([])), ErrorKind::NoMembers);
    refused!(fails(Arranged::interleaved(0, [])), ErrorKind::NoMembers);
    for name in ["m", "tied", "new"] {
        let twice = [("new", t("v").slice(0, 1)), (name, t("v"))];
        let error =
            refused!(open(&tensors, &[("tied", "v")]).arranged(twice), ErrorKind::DuplicateTensor);
        assert_eq!(error.tensor(), Some(name));
    }
    refused!(open(&tensors, &[]).arranged([("__metadata__", t("v"))]), ErrorKind::ReservedName);

    let floats = TensorView::from_slice(&[3], &[1.0_f32; 3]).unwrap();
    let codes = TensorView::new(Dtype::F4, &[2, 2], &[0x21, 0x43]).unwrap();
    let two = serialize([("f", floats), ("c", codes)], &SaveOptions::new()).unwrap();
    let fails =
        |of: Arranged| Checkpoint::from_source(two.clone(), "f").unwrap().arranged([("n", of)]);
    let both = Arranged::stack([t("f"), t("c").slice(0, 0)]);
    refused!(fails(both), ErrorKind::WrongDtype { expected: Dtype::F32, found: Dtype::F4 });
    refused!(fails(t("c").transposed()), ErrorKind::SliceInsideByte { dtype: Dtype::F4 });
    let error = refused!(fails(t("c").slice(1, 0).slice(0, 0)), ErrorKind::PartialByte { .. });
    assert_eq!(error.tensor(), Some("n"));
    assert!(fails(Arranged::concat(1, [t("c"), t("c")])).is_ok());
}

/// Shapes that multiply beyond 64 bits, and dimensions without a position.
#[test]
fn empty_and_huge_tensors() {
    let huge = usize::MAX / 2 + 1;
    let header = format!(
        r#"{{"e":{{"dtype":"U8","shape":[0,{huge}],"data_offsets":[0,0]}},
            "f":{{"dtype":"U8","shape":[0,4],"data_offsets":[0,0]}}}}"#
    );
    let bytes = file(header, 0);
    let arrange =
        |of: Arranged| Checkpoint::from_source(bytes.clone(), "f").unwrap().arranged([("n", of)]);
    refused!(arrange(Arranged::concat(1, [t("e"), t("e")])), ErrorKind::ShapeOverflow { .. });
    refused!(arrange(Arranged::interleaved(1, [t("e"), t("e")])), ErrorKind::ShapeOverflow { .. });
    refused!(arrange(Arranged::stack([t("e"), t("e"), t("e")])), ErrorKind::ShapeOverflow { .. });
    refused!(arrange(t("f").slice(0, 0)), ErrorKind::IndexOutOfBounds { len: 0, .. });
    for (of, shape) in [
        (t("e").transposed(), vec![huge, 0]),
        (t("e").slice(1, Index::ALL.step(usize::MAX)), vec![0, 1]),
        (Arranged::stack([t("f"), t("f")]), vec![2, 0, 4]),
        (Arranged::concat(0, [t("f"), t("f")]).slice(1, 2), vec![0]),
    ] {
        let arranged = arrange(of).unwrap();
        let tensor = arranged.tensor("n").unwrap();
        assert_eq!((tensor.shape(), tensor.byte_len()), (&shape[..], 0));
        assert!(tensor.read().unwrap().bytes().is_empty());
    }
}

/// Rows of a transposed matrix, a rank's columns, an expert: each reads its own bytes.
#[test]
fn a_part_reads_its_own_bytes() {
    let (rows, columns) = (600, 1000);
    let shape = [rows, columns];
    let values: Vec<u16> = (0..rows * columns).map(|at| at as u16).collect();
    let matrix = TensorView::from_slice(&shape, &values).unwrap();
    let shape = [4, rows * columns / 4];
    let stack = TensorView::from_slice(&shape, &values).unwrap();
    let file = serialize([("m", matrix), ("s", stack)], &SaveOptions::new()).unwrap();
    let source = NotingSource::new(file);
    let arranged = Checkpoint::from_source(source.clone(), "f").unwrap();
    let members = [t("s").slice(0, 2), t("s").slice(0, 0)];
    let arranged = arranged.arranged([("t", t("m").transposed()), ("u", Arranged::stack(members))]);
    let arranged = arranged.unwrap();
    source.take_reads();

    let turned = arranged.tensor("t").unwrap();
    let all = turned.read().unwrap();
    assert_eq!(source.take_len(), (rows * columns * 2) as u64);
    let all = all.as_slice::<u16>().unwrap();
    assert!((0..all.len()).all(|at| all[at] == values[at % rows * columns + at / rows]));
    // Two elements of each stored row.
    let two = turned.slice((10..12,)).unwrap().read().unwrap();
    assert_eq!(two.as_slice::<u16>().unwrap(), &all[10 * rows..12 * rows]);
    assert_eq!(source.take_len(), (2 * rows * 2) as u64);
    // Whole rows of the file, read together.
    let part = turned.slice(RankPart::new(1, 1, 3)).unwrap().read().unwrap();
    let reads = source.take_reads();
    assert!(
        reads.len() <= rows
            && reads.iter().map(|&(_, len)| len).sum::<usize>() == part.bytes().len()
    );
    let shape = [columns, rows];
    let expected = TensorView::from_slice(&shape, all).unwrap();
    let expected = expected.slice(RankPart::new(1, 1, 3)).unwrap().to_buf().unwrap();
    assert_eq!(part.bytes(), expected.bytes());
    let expert = arranged.tensor("u").unwrap().slice((0,)).unwrap().read().unwrap();
    assert_eq!(expert.as_slice::<u16>().unwrap(), &values[values.len() / 2..][..values.len() / 4]);
    assert_eq!(source.take_reads().len(), 1);
}

/// A stack of tensors in two shards is in the file of the first. Records of digests go.
#[test]
fn stacks_of_shards_are_saved_and_loaded() {
    let dir = tempdir().unwrap();
    let expert = |i: i16| TensorBuf::from_vec(vec![2, 3], (i * 6..i * 6 + 6).collect()).unwrap();
    let experts: Vec<_> = (0..4).map(|i| (format!("e.{i}"), expert(i))).collect();
    let options = ShardOptions::new().max_shard_size(24.into());
    let options = options.save_options(SaveOptions::new().digests(true).metadata([("k", "v")]));
    save_sharded(dir.path(), experts.iter().map(|(name, it)| (name, it)), &options).unwrap();
    let opened = || Checkpoint::open(dir.path()).unwrap();
    assert_eq!(opened().files().len(), 2);
    let stack = || Arranged::stack((0..4).map(|i| t(&format!("e.{}", 3 - i)).transposed()));
    let stacked = opened().arranged([("e", stack())]).unwrap();
    let tensor = stacked.tensor("e").unwrap();
    assert_eq!((tensor.shape(), tensor.file_index()), (&[4, 3, 2][..], 1));
    for file in stacked.files() {
        assert!(!file.safetensors().metadata().contains_key(digest::KEY));
    }
    assert_eq!(stacked.metadata()["k"], "v");
    check_parts(tensor, "stacked");
    let out = dir.path().join("out.safetensors");
    Rewrite::from_checkpoint(&stacked).save(&out, &SaveOptions::new()).unwrap();
    let saved = Checkpoint::open(&out).unwrap();
    let expected: Vec<i16> =
        (0..4).rev().flat_map(|i| [0, 3, 1, 4, 2, 5].map(|at| i * 6 + at)).collect();
    assert_eq!(values(&saved, "e"), expected);
    assert_eq!(values(&stacked, "e"), expected);
    // And back, from the arranged one.
    let split = |i: usize| (format!("e.{}", 3 - i), t("e").slice(0, i).transposed());
    let back = stacked.arranged((0..4).map(split)).unwrap();
    for (name, expert) in &experts {
        assert_eq!(back.tensor(name).unwrap().read().unwrap().bytes(), expert.bytes());
    }
}

/// Adapters and parts of ranks find arranged tensors like stored ones.
#[test]
fn adapters_are_merged_into_arranged_tensors() {
    let of = |name: &str, shape: &[usize], values: Vec<f32>| {
        let buf = TensorBuf::from_vec(shape.to_vec(), values).unwrap();
        Checkpoint::from_source(serialize([(name, buf)], &SaveOptions::new()).unwrap(), "f")
            .unwrap()
    };
    let base = || of("x", &[3, 4], (0..12).map(|at| at as f32).collect());
    let down = TensorBuf::from_vec(vec![1, 3], vec![1.0_f32, 10.0, 100.0]).unwrap();
    let up = TensorBuf::from_vec(vec![4, 1], vec![1000.0_f32, 2000.0, 3000.0, 4000.0]).unwrap();
    let tensors = [("y.lora_A.weight", down), ("y.lora_B.weight", up)];
    let adapter = serialize(tensors, &SaveOptions::new()).unwrap();
    let adapter = Adapter::new(Checkpoint::from_source(adapter, "a").unwrap()).unwrap();
    let arranged = base().arranged([("y.weight", t("x").transposed())]).unwrap();
    let merged = arranged.merged([adapter]).unwrap();
    let weight = merged.tensor("y.weight").unwrap();
    let sum = |at: usize| {
        let (row, column) = (at / 3, at % 3);
        (column * 4 + row + 1000 * (row + 1) * [1, 10, 100][column]) as f32
    };
    let expected: Vec<f32> = (0..12).map(sum).collect();
    assert_eq!(weight.read().unwrap().as_slice::<f32>().unwrap(), expected);
    check_parts(weight, "merged");
}

#[test]
fn sources_hear_of_the_bytes_below_and_changes_are_errors() {
    let far = Odd::new(file_of(&[("m", &[4, 300], 0)], &[]));
    let start = far.bytes.len() as u64 - 2400;
    let columns = |from: usize| t("m").slice(1, from..from + 2).transposed();
    let arrange = || {
        let opened = Checkpoint::from_source(far.clone(), "f").unwrap();
        let arranged: Checkpoint<Computed<Odd>> =
            opened.arranged([("n", columns(0)), ("o", t("m").slice(0, 1..3))]).unwrap();
        far.take_heard();
        arranged
    };
    let arranged = arrange();
    arranged.read_named(["n"], &LoadOptions::new()).unwrap();
    let [a, b, c, d] = [0, 600, 1200, 1800].map(|at| start + at..start + at + 4);
    let mut heard = far.take_heard();
    assert_eq!(heard.remove(0), format!("will {:?}", [&a, &b, &c, &d]));
    assert_eq!(heard.remove(0), "4 ranges");
    assert_eq!(heard, [&a, &b, &c, &d].map(|range| format!("has {range:?}")));
    // Columns of a transposed tensor are rows of the file, not many elements.
    let middle = arranged.tensor("n").unwrap().slice((.., 1..3)).unwrap();
    middle.read().unwrap();
    assert_eq!(far.take_heard().remove(0), format!("will {:?}", [&b, &c]));
    // One call for both tensors.
    arranged.read_named(["n", "o"], &LoadOptions::new()).unwrap();
    assert!(far.take_heard().iter().any(|heard| heard == "5 ranges"));

    far.has_changed.store(true, Ordering::SeqCst);
    for name in ["n", "o"] {
        let error = arranged.tensor(name).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("it changed"), "{error}");
        assert_eq!((error.file(), error.tensor()), (Some("f"), Some(name)));
    }
}

/// A write to a file during a load is an error, also for tensors that are in another file.
#[test]
fn a_changed_file_is_named() {
    let dir = tempdir().unwrap();
    let one = write(dir.path(), "1.safetensors", file_of(&[("a", &[2, 2], 0)], &[]));
    let two = write(dir.path(), "2.safetensors", file_of(&[("b", &[2, 2], 4)], &[]));
    let checkpoint = Checkpoint::open_files([&one, &two]).unwrap();
    let stacked = checkpoint.arranged([("s", Arranged::stack([t("a"), t("b")]))]).unwrap();
    assert_eq!(values(&stacked, "s"), [0, 1, 2, 3, 4, 5, 6, 7]);
    fs::OpenOptions::new().write(true).open(&two).unwrap().set_len(9).unwrap();
    let error = stacked.tensor("s").unwrap().read().unwrap_err();
    assert!(error.to_string().contains("2.safetensors"), "{error}");
    assert_eq!(error.tensor(), Some("s"));
}
