//! Metadata entries that are aliases of tensors, or only look like it, and how a rewrite treats
//! them.

use safetensors_core::digest;
use safetensors_core::error::TieProblem;
use safetensors_core::tied::Tied;

use crate::support::*;

/// 1 and 2 in F32.
const VALUES: [u8; 8] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40];

/// A file of these tensors, each with 2 elements or none.
fn saved(
    dir: &TempDir,
    tensors: &[&str],
    elements: usize,
    metadata: &[(&str, &str)],
) -> Checkpoint {
    let path = dir.path().join("in.safetensors");
    let shape = [elements];
    let view = TensorView::new(Dtype::F32, &shape, &VALUES[..4 * elements]).unwrap();
    let options = SaveOptions::new().metadata(metadata.iter().copied());
    save(&path, tensors.iter().map(|name| (name, view)), &options).unwrap();
    Checkpoint::open(path).unwrap()
}

/// The tensors in the file with their dtypes, and its metadata.
fn written(rewrite: Rewrite) -> (BTreeMap<String, Dtype>, BTreeMap<String, String>) {
    let dir = tempdir().unwrap();
    let path: PathBuf = dir.path().join("out.safetensors");
    let plan = rewrite.plan(&SaveOptions::new()).unwrap();
    let planned: BTreeMap<_, _> =
        plan.tensors().map(|(name, tensor)| (name.to_owned(), tensor.dtype())).collect();
    rewrite.save(&path, &SaveOptions::new()).unwrap();
    let out = Checkpoint::open(&path).unwrap();
    let tensors: BTreeMap<_, _> =
        out.tensors().map(|tensor| (tensor.name().to_owned(), tensor.dtype())).collect();
    assert_eq!(planned, tensors, "what is planned is what is written");
    (tensors, out.metadata().clone().into_iter().collect())
}

fn tensors(tensors: &[(&str, Dtype)]) -> BTreeMap<String, Dtype> {
    tensors.iter().map(|&(name, dtype)| (name.to_owned(), dtype)).collect()
}

fn metadata(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn cast<'a>(rewrite: Rewrite<'a>, to: &[(&str, Dtype)]) -> Rewrite<'a> {
    let to = |name: &str| to.iter().find(|(cast, _)| *cast == name).map(|&(_, dtype)| dtype);
    rewrite.cast(&ConvertOptions::new(), |name, _| to(name)).unwrap()
}

#[test]
fn keys_with_a_meaning_of_their_own_are_never_names() {
    let dir = tempdir().unwrap();
    for key in ["format", "modelspec.architecture", digest::KEY] {
        let checkpoint = saved(&dir, &["pt"], 2, &[(key, "pt")]);
        assert_eq!(checkpoint.aliases().count(), 0, "{key}");
        assert!(checkpoint.get(key).is_none());
        if key == digest::KEY {
            continue;
        }
        let as_it_was = metadata(&[(key, "pt")]);
        assert_eq!(
            written(Rewrite::from_checkpoint(&checkpoint)),
            (tensors(&[("pt", Dtype::F32)]), as_it_was.clone())
        );
        let prefixed = Rewrite::from_checkpoint(&checkpoint).rename(|name| format!("m.{name}"));
        assert_eq!(written(prefixed), (tensors(&[("m.pt", Dtype::F32)]), as_it_was.clone()));
        let half = cast(Rewrite::from_checkpoint(&checkpoint), &[("pt", Dtype::F16)]);
        assert_eq!(written(half), (tensors(&[("pt", Dtype::F16)]), as_it_was.clone()));
        assert_eq!(
            written(Rewrite::from_checkpoint(&checkpoint).select(|name, _| name == "pt")).1,
            as_it_was
        );
    }
    // So no tensor can be saved as an alias of such a name: it would not be found again.
    let view = TensorView::new(Dtype::F32, &[2], &VALUES).unwrap();
    let tied = SaveOptions::new().tied(Tied::new());
    let error = refused!(
        save(dir.path().join("x.safetensors"), [("a", view), ("format", view)], &tied),
        ErrorKind::Tie { problem: TieProblem::Reserved { kept } } if kept == "a"
    );
    assert_eq!(error.tensor(), Some("format"));
    let kept = tied.tied(Tied::new().prefer(["format"]));
    save(dir.path().join("x.safetensors"), [("a", view), ("format", view)], &kept).unwrap();
    assert_eq!(Checkpoint::open(dir.path().join("x.safetensors")).unwrap().aliases().count(), 1);
}

#[test]
fn an_alias_goes_where_its_tensor_goes() {
    let dir = tempdir().unwrap();
    // Also if the tensor has no bytes to share.
    for elements in [2, 0] {
        let checkpoint = saved(&dir, &["model", "w"], elements, &[("base", "model"), ("by", "me")]);
        let of = || Rewrite::from_checkpoint(&checkpoint);
        let (f32, f16) = (Dtype::F32, Dtype::F16);
        let base = metadata(&[("base", "model"), ("by", "me")]);
        let both = tensors(&[("model", f32), ("w", f32)]);

        assert_eq!(written(of()), (both.clone(), base.clone()));
        let only = of().select(|name, _| name == "model");
        assert_eq!(written(only), (tensors(&[("model", f32)]), base.clone()));
        let others = [of().select(|name, _| name == "w"), of().exclude(|name, _| name == "model")];
        for other in others {
            assert_eq!(written(other), (tensors(&[("w", f32)]), metadata(&[("by", "me")])));
        }
        let half = cast(of(), &[("model", f16)]);
        assert_eq!(written(half), (tensors(&[("model", f16), ("w", f32)]), base.clone()));
        let renamed = of().rename(|name| name.replace("model", "encoder"));
        assert_eq!(written(renamed).1, metadata(&[("base", "encoder"), ("by", "me")]));
        assert_eq!(
            written(of().exclude(|name, _| name == "base")),
            (both, metadata(&[("by", "me")]))
        );
        let sharded = of().save_sharded(dir.path().join("out"), &ShardOptions::new()).unwrap();
        assert_eq!(sharded.total_size, 8 * elements as u64);
    }
}

#[test]
fn an_alias_that_is_selected_becomes_a_tensor() {
    let dir = tempdir().unwrap();
    let checkpoint = saved(&dir, &["embed", "w"], 2, &[("head", "embed"), ("tail", "embed")]);
    let of = || Rewrite::from_checkpoint(&checkpoint);
    let (f32, f16) = (Dtype::F32, Dtype::F16);

    assert_eq!(
        written(of().select(|name, _| name == "head")),
        (tensors(&[("head", f32)]), metadata(&[]))
    );
    // Two aliases without their tensor are still tied.
    let two = of().select(|name, _| name != "embed" && name != "w");
    assert_eq!(written(two), (tensors(&[("head", f32)]), metadata(&[("tail", "head")])));

    let head = cast(of(), &[("head", f16)]);
    let expected = tensors(&[("embed", f32), ("head", f16), ("w", f32)]);
    assert_eq!(written(head), (expected, metadata(&[("tail", "embed")])));
    // The alias keeps its dtype while its tensor is cast.
    let keep = cast(of(), &[("head", f32), ("embed", f16)]);
    let expected = tensors(&[("embed", f16), ("head", f32), ("w", f32)]);
    assert_eq!(written(keep), (expected, metadata(&[("tail", "embed")])));
    // The alias is cast like its tensor.
    let alike = cast(of(), &[("head", f16), ("embed", f16)]);
    assert_eq!(written(alike).0, tensors(&[("embed", f16), ("w", f32)]));
    // An alias that has become a separate tensor stays when the other tensor is skipped.
    let own = cast(of(), &[("head", f16)]).exclude(|name, _| name == "embed");
    assert_eq!(written(own), (tensors(&[("head", f16), ("w", f32)]), metadata(&[])));
}

#[test]
fn empty_tensors_from_elsewhere_are_not_tied() {
    let empty = TensorView::new(Dtype::F32, &[0], &[]).unwrap();
    let rewrite = Rewrite::new().add("a", empty).unwrap().add("b", empty).unwrap();
    assert_eq!(written(rewrite), (tensors(&[("a", Dtype::F32), ("b", Dtype::F32)]), metadata(&[])));
}
