//! Tied weights: the saved tensors, the recorded names, and the result of reading them back.

mod files;
use safetensors_core::error::TieProblem;
use safetensors_core::tied::Tied;

use crate::support::*;

fn aliases(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, kept)| ((*name).into(), (*kept).into())).collect()
}

#[test]
fn saved_once_and_recorded() {
    let buf = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let equal = buf.clone();
    let tensors = [("b", &buf), ("c", &equal), ("a", &buf)];
    let options = SaveOptions::new().metadata([("format", "pt")]);

    let plain = SafeTensors::parse(serialize(tensors, &options).unwrap()).unwrap();
    assert_eq!((plain.tensors().len(), plain.metadata().len()), (3, 1));

    let options = options.tied(Tied::new());
    let file = serialize(tensors, &options).unwrap();
    let tied = SafeTensors::parse(&file).unwrap();
    assert_eq!(tied.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(*tied.metadata(), aliases(&[("b", "a"), ("format", "pt")]));
    // Without shared storage nothing is recorded.
    let others = [("c", &equal), ("a", &buf)];
    let untied = SaveOptions::new().metadata([("format", "pt")]);
    assert_eq!(serialize(others, &options).unwrap(), serialize(others, &untied).unwrap());

    // A user's metadata entry with the same value is fine. One with another value would hide the
    // name.
    assert_eq!(serialize(tensors, &options.clone().metadata([("b", "a")])).unwrap(), file);
    let error = serialize(tensors, &options.metadata([("b", "mine")])).unwrap_err();
    let ErrorKind::Tie { problem: TieProblem::NotRecorded { kept, found } } = error.kind() else {
        unreachable!("{error}")
    };
    assert_eq!((kept.as_str(), found.as_str(), error.tensor()), ("a", "mine", Some("b")));
}

#[test]
fn storages_of_views_and_buffers() {
    let buf = TensorBuf::from_vec(vec![2], vec![1_u8, 2]).unwrap();
    let copy = buf.clone();
    assert_eq!(TensorSource::storage(&buf), TensorSource::storage(&&buf));
    assert_ne!(TensorSource::storage(&buf), TensorSource::storage(&copy));
    let view = TensorView::from_slice(&[2], buf.bytes()).unwrap();
    let boxed: Box<dyn TensorSource> = Box::new(view);
    assert_eq!(boxed.storage(), TensorSource::storage(&buf));
}
