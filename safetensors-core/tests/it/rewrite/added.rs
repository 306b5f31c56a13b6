//! Tensors that are added from memory or from elsewhere.

use std::ops::Range;

use safetensors_core::save::Sink;
use safetensors_core::tied::Storage;

use super::{content, floats, saved};
use crate::support::*;

#[test]
fn tensors_from_elsewhere_are_merged_cast_and_tied() {
    let dir = tempdir().unwrap();
    let path = saved(&dir, "a.safetensors", &[("w", floats([1.0, 2.0]))], &[("format", "pt")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let values = [3.0_f32, 4.0].map(f32::to_le_bytes).concat();
    let shared = TensorView::new(Dtype::F32, &[2], &values).unwrap();
    let of_another_shape = TensorView::new(Dtype::F32, &[2, 1], &values).unwrap();
    let to = dir.path().join("to.safetensors");
    let rewrite = Rewrite::from_checkpoint(&checkpoint)
        .add("z", shared)
        .unwrap()
        .add("b", shared)
        .unwrap()
        .add("column", of_another_shape)
        .unwrap()
        .add("owned", floats([1e6]))
        .unwrap();
    let sources: Vec<_> =
        rewrite.tensors().map(|(_, planned)| planned.tensor().is_some()).collect();
    assert_eq!(sources, [true, false, false, false, false]);
    let half = |name: &str| (name != "column").then_some(Dtype::BF16);
    let rewrite = rewrite
        .rename(|name| format!("m.{name}"))
        .cast(&ConvertOptions::new(), |name, _| half(&name[2..]));
    rewrite.unwrap().save(&to, &SaveOptions::new()).unwrap();
    let (tensors, aliases) = content(&to);
    let dtypes: Vec<_> = tensors.iter().map(|(name, dtype, _)| (name.as_str(), *dtype)).collect();
    let expected = [
        ("m.b", Dtype::BF16),
        ("m.column", Dtype::F32),
        ("m.owned", Dtype::BF16),
        ("m.w", Dtype::BF16),
    ];
    assert_eq!(dtypes, expected);
    assert_eq!(aliases, [("m.z".to_owned(), "m.b".to_owned())]);
    assert_eq!(
        tensors[0].2,
        [3.0, 4.0].map(half::bf16::from_f32).map(half::bf16::to_le_bytes).concat()
    );

    let strict = ConvertOptions::new().overflow(Overflow::Error);
    let cast =
        Rewrite::new().add("owned", floats([1e6])).unwrap().cast(&strict, |_, _| Some(Dtype::F16));
    let error = cast.unwrap().save(&to, &SaveOptions::new()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("owned"), to.to_str()));
    assert_eq!(content(&to).0.len(), 4, "the file is as it was");
}

/// A tensor that fills only a part of its storage, such as a framework's view.
#[derive(Clone)]
struct Part(TensorBuf, Range<u64>);

impl TensorSource for Part {
    fn dtype(&self) -> Dtype {
        self.0.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.0.write_to(sink)
    }

    fn storage(&self) -> Option<Storage> {
        Some(Storage { id: 1, byte_len: 100, range: self.1.clone(), contiguous: true })
    }
}

#[test]
fn an_added_tensor_that_fills_a_part_of_its_storage_is_not_tied() {
    let (_dir, to) = place("to.safetensors");
    let (start, middle) = (Part(floats([1.0]), 0..4), Part(floats([2.0]), 2..6));
    let rewrite = Rewrite::new().add("a", start.clone()).unwrap().add("b", start).unwrap();
    rewrite.add("c", middle).unwrap().save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(
        content(&to).0.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
}
