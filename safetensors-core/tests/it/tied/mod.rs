//! Tied weights: what is saved, what is recorded, and what is read back.

#[cfg(feature = "std")]
mod files;
#[cfg(feature = "std")]
use std::collections::BTreeMap;

use safetensors_core::error::TieProblem;
use safetensors_core::save::Sink;
use safetensors_core::tied::{Storage, Tied};
use safetensors_core::{
    Dtype, ErrorKind, Result, SafeTensors, SaveOptions, TensorBuf, TensorSource, TensorView,
    serialize,
};

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
