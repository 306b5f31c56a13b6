//! Tests which names are kept, against the results of Python's `safetensors.torch`.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::{Resolved, Storage, Tied, Views};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result, TieProblem};
use crate::format::tensor::{Sink, TensorSource, named};

fn resolve<N: AsRef<str>>(tensors: &[(N, Slice)], options: &Tied) -> Result<Resolved> {
    super::resolve(&named(tensors), options)
}

/// A tensor that is a slice of a storage.
#[derive(Clone, Debug)]
struct Slice {
    dtype: Dtype,
    shape: Vec<usize>,
    storage: Option<Storage>,
}

impl Slice {
    /// The F32 elements `start..end` of a storage of `len` elements.
    fn new(storage: u64, len: u64, start: u64, end: u64) -> Self {
        Self {
            dtype: Dtype::F32,
            shape: vec![(end - start) as usize],
            storage: Some(Storage {
                id: storage,
                byte_len: len * 4,
                range: start * 4..end * 4,
                contiguous: true,
            }),
        }
    }

    fn whole(storage: u64, len: u64) -> Self {
        Self::new(storage, len, 0, len)
    }
}

impl TensorSource for Slice {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let bytes = self.shape.iter().product::<usize>() * self.dtype.bits() as usize / 8;
        sink(&vec![self.storage.as_ref().map_or(9, |storage| storage.id as u8); bytes])
    }

    fn storage(&self) -> Option<Storage> {
        self.storage.clone()
    }
}

fn aliases(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, kept)| ((*name).into(), (*kept).into())).collect()
}

fn not_covered(error: &Error) -> &[String] {
    match error.kind() {
        ErrorKind::Tie { problem: TieProblem::NotCovered { names } } => names,
        _ => unreachable!("{error}"),
    }
}

#[test]
#[cfg(feature = "std")]
fn the_same_names_as_safetensors_torch() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tied-names.json");
    let cases: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let strings = |value: &serde_json::Value| -> Vec<String> {
        serde_json::from_value(value.clone()).unwrap()
    };
    let (mut refused, mut views) = (0, 0);
    for case in cases.as_array().unwrap() {
        let tensors: BTreeMap<String, (u64, u64, u64)> =
            serde_json::from_value(case["tensors"].clone()).unwrap();
        let len = |storage: u64| case["storages"][storage as usize].as_u64().unwrap();
        let tensors: Vec<_> = tensors
            .into_iter()
            .map(|(name, (storage, start, end))| {
                (name, Slice::new(storage, len(storage), start, end))
            })
            .collect();
        let options = Tied::new().prefer(strings(&case["prefer"]));
        let expected: Option<BTreeMap<String, String>> =
            serde_json::from_value(case["aliases"].clone()).unwrap();
        let found = resolve(&tensors, &options.clone().views(Views::Drop));
        let Some(expected) = expected else {
            not_covered(&found.unwrap_err());
            resolve(&tensors, &options).unwrap_err();
            refused += 1;
            continue;
        };
        let found = found.unwrap();
        assert_eq!(found.aliases, expected, "{case}");
        let kept: Vec<_> = found.keep.iter().map(|&i| &tensors[i].0).collect();
        let all = tensors.iter().map(|(name, _)| name).filter(|name| !expected.contains_key(*name));
        assert_eq!(kept, all.collect::<Vec<_>>(), "{case}");
        // With the default options the outcome is the same, or an error if a view would be lost.
        let range = |name: &String| {
            let (_, slice) = tensors.iter().find(|(other, _)| other == name).unwrap();
            slice.storage.as_ref().unwrap().range.clone()
        };
        match resolve(&tensors, &options) {
            Ok(same) => assert_eq!(same, found),
            Err(error) => {
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Tie { problem: TieProblem::PartlyTied { .. } }
                    ),
                    "{error}"
                );
                assert!(expected.iter().any(|(name, kept)| range(name) != range(kept)), "{case}");
                views += 1;
            }
        }
    }
    assert!(refused > 10 && views > 10);
}

#[test]
fn the_kept_name_is_the_preferred_or_the_first() {
    let shared = Slice::whole(1, 4);
    let tensors = ["c", "b", "a", "d"].map(|name| (name, shared.clone()));
    let kept = |options: Tied| {
        let resolved = resolve(&tensors, &options).unwrap();
        assert_eq!((resolved.keep.len(), resolved.aliases.len()), (1, 3));
        tensors[resolved.keep[0]].0
    };
    assert_eq!(kept(Tied::new()), "a");
    assert_eq!(kept(Tied::new().prefer(["d", "c", "x"])), "c");
}

#[test]
fn tensors_with_other_bytes_or_none_are_not_shared() {
    let mut unknown = Slice::whole(1, 4);
    unknown.storage = None;
    let mut no_elements = Slice::whole(1, 4);
    no_elements.shape = vec![0];
    let tensors = [
        ("a", unknown.clone()),
        ("b", unknown),
        ("other length", Slice::whole(1, 8)),
        ("other storage", Slice::whole(2, 4)),
        ("without elements", Slice::new(1, 4, 0, 0)),
        ("without elements 2", Slice::new(1, 4, 2, 2)),
        ("no storage 1", Slice::whole(3, 0)),
        ("no storage 2", Slice::whole(3, 0)),
        ("c", Slice::whole(1, 4)),
    ];
    let resolved = resolve(&tensors, &Tied::new()).unwrap();
    assert_eq!(
        resolved,
        Resolved { keep: Vec::from_iter(0..tensors.len()), aliases: BTreeMap::new() }
    );
    assert_eq!(resolve::<&str>(&[], &Tied::new()).unwrap(), Resolved::default());
}

/// The published cases of the Python package: `A` of shape `[3, 3]` and `B`, its first row.
#[test]
fn a_part_of_another_tensor_is_refused_or_dropped() {
    let (a, b) = (Slice::whole(1, 9), Slice::new(1, 9, 0, 3));
    let tensors = [("A", a.clone()), ("B", b.clone()), ("C", a.clone())];
    let dropped = resolve(&tensors, &Tied::new().views(Views::Drop)).unwrap();
    assert_eq!(dropped, Resolved { keep: vec![0], aliases: aliases(&[("B", "A"), ("C", "A")]) });

    let error = resolve(&tensors, &Tied::new()).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Tie { problem: TieProblem::PartlyTied { kept } } if kept == "A"
        ),
        "{error}"
    );
    assert_eq!(error.tensor(), Some("B"));

    let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 1], aliases: aliases(&[("C", "A")]) });

    for views in [Views::Refuse, Views::Drop] {
        let error = resolve(&[("B", b.clone())], &Tied::new().views(views)).unwrap_err();
        assert_eq!((not_covered(&error), error.tensor()), (&["B".to_owned()][..], Some("B")));
    }
}

#[test]
fn no_tensor_fills_the_storage() {
    let tensors = [
        ("y", Slice::new(1, 9, 2, 6)),
        ("x", Slice::new(1, 9, 4, 9)),
        ("z", Slice::new(1, 9, 0, 1)),
    ];
    let error = resolve(&tensors[..2], &Tied::new()).unwrap_err();
    assert_eq!(
        (not_covered(&error), error.tensor()),
        (&["x".to_owned(), "y".to_owned()][..], Some("x"))
    );
    assert!(error.to_string().contains("\"x\", \"y\""), "{error}");
    let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 1, 2], aliases: BTreeMap::new() });

    // The halves do not overlap, so they are not tied. Neither of them fills the storage.
    let halves = [
        ("l", Slice::new(1, 8, 0, 4)),
        ("r", Slice::new(1, 8, 4, 8)),
        ("again", Slice::new(1, 8, 4, 8)),
    ];
    assert_eq!(not_covered(&resolve(&halves[..2], &Tied::new()).unwrap_err()), ["l"]);
    let saved = resolve(&halves, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 2], aliases: aliases(&[("r", "again")]) });
}

/// A row that is broadcast to the size of the storage does not hold the other rows.
#[test]
fn a_part_that_is_broadcast() {
    let whole = Slice { shape: vec![3, 3], ..Slice::whole(1, 9) };
    let mut row = Slice { shape: vec![3, 3], ..Slice::new(1, 9, 0, 3) };
    row.storage.as_mut().unwrap().contiguous = false;
    let dropped =
        resolve(&[("a", row.clone()), ("b", whole)], &Tied::new().views(Views::Drop)).unwrap();
    assert_eq!(dropped, Resolved { keep: vec![1], aliases: aliases(&[("a", "b")]) });
    assert_eq!(not_covered(&resolve(&[("a", row)], &Tied::new()).unwrap_err()), ["a"]);
}

/// Tensors that fill the same storage can still differ in layout, shape or dtype.
#[test]
fn other_views_of_the_same_bytes_are_refused() {
    let a = Slice { shape: vec![2, 2], ..Slice::whole(1, 4) };
    let mut transposed = a.clone();
    transposed.storage.as_mut().unwrap().contiguous = false;
    let flat = Slice { shape: vec![4], ..a.clone() };
    let integers = Slice { dtype: Dtype::I32, ..a.clone() };
    for other in [transposed, flat, integers] {
        let tensors = [("a", a.clone()), ("b", other.clone()), ("c", a.clone())];
        let error = resolve(&tensors, &Tied::new()).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Tie { problem: TieProblem::PartlyTied { kept } } if kept == "a"
            ),
            "{error}"
        );
        assert_eq!(error.tensor(), Some("b"));
        let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
        assert_eq!(saved, Resolved { keep: vec![0, 1], aliases: aliases(&[("c", "a")]) });
    }
}

#[test]
fn names_that_could_not_be_saved_are_errors() {
    let shared = Slice::whole(1, 4);
    for (names, twice) in [(["a", "a"], true), (["__metadata__", "a"], false)] {
        let tensors = names.map(|name| (name, shared.clone()));
        let error = resolve(&tensors, &Tied::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor if twice) || !twice, "{error}");
        assert!(matches!(error.kind(), ErrorKind::ReservedName if !twice) || twice, "{error}");
        assert_eq!(error.tensor(), Some(names[0]));
    }
}
