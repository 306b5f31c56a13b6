//! For equal tensors and metadata, this crate and the reference write equal bytes.

use std::collections::HashMap;
use std::fs;

use candle_core::{DType, Device};
use safetensors::tensor::TensorView as ReferenceView;
use safetensors_bridge::save::{StreamWriter, write_to};
use safetensors_bridge::{Dtype, Metadata, SaveOptions, TensorView, save, serialize};

use super::{random_numbers, reference_dtype};

/// Parts of names, including characters that JSON escapes and texts that orders sort differently.
const PARTS: &[&str] =
    &["a", "B", ".", "0", "10", "é", "\u{1f600}", "\"", "\\", "\n", "\u{7f}", "/", "\u{1}"];

/// A tensor to be saved.
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// A set of tensors by name, and metadata.
struct Set {
    tensors: HashMap<String, Tensor>,
    metadata: Metadata,
}

impl Set {
    /// A random set: some dtypes or all, scalars and empty tensors among them.
    fn random(random: &mut impl FnMut(usize) -> usize) -> Self {
        let mut tensors = HashMap::new();
        for _ in 0..random(30) {
            let dtype = Dtype::ALL[random(Dtype::ALL.len())];
            let mut shape: Vec<usize> = (0..random(4)).map(|_| random(4)).collect();
            if dtype.is_sub_byte() {
                // Whole bytes.
                shape.push(4);
            }
            let bits = shape.iter().product::<usize>() * dtype.bits() as usize;
            let data = (0..bits / 8).map(|_| random(256) as u8).collect();
            tensors.insert(text(random), Tensor { dtype, shape, data });
        }
        let metadata = (0..random(4)).map(|_| (text(random), text(random))).collect();
        Self { tensors, metadata }
    }

    fn views(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> + Clone {
        self.tensors.iter().map(|(name, Tensor { dtype, shape, data })| {
            (name.as_str(), TensorView::new(*dtype, shape, data).unwrap())
        })
    }

    /// Returns the file that the reference writes. Without metadata it has no `__metadata__`, as
    /// ours.
    fn reference(&self) -> Vec<u8> {
        let views = self.views().map(|(name, view)| {
            let (dtype, shape) = (reference_dtype(view.dtype()), view.shape().to_vec());
            (name, ReferenceView::new(dtype, shape, view.data()).unwrap())
        });
        let metadata = self.metadata.clone().into_iter().collect::<HashMap<_, _>>();
        safetensors::serialize(views, Some(metadata).filter(|all| !all.is_empty())).unwrap()
    }

    fn options(&self) -> SaveOptions {
        SaveOptions::new().metadata(self.metadata.clone()).durable(false)
    }
}

fn text(random: &mut impl FnMut(usize) -> usize) -> String {
    (0..1 + random(5)).map(|_| PARTS[random(PARTS.len())]).collect()
}

/// The reference keeps metadata in a hash map, and writes it in another order in each process. So
/// whole files are compared if there is at most one entry. If there are several, everything is but
/// their order.
#[test]
fn random_sets_of_tensors_give_the_bytes_of_the_reference() {
    let mut random = random_numbers(2);
    let (mut whole, mut but_for_order) = (0, 0);
    for _ in 0..1_000 {
        let set = Set::random(&mut random);
        let (ours, theirs) = (serialize(set.views(), &set.options()).unwrap(), set.reference());
        if set.metadata.len() <= 1 {
            assert!(ours == theirs, "{}\n{}", header(&ours), header(&theirs));
            whole += 1;
            continue;
        }
        assert_eq!(metadata(&ours), metadata(&theirs));
        // Everything behind the metadata, which comes first.
        let alone = serialize(set.views().take(0), &set.options()).unwrap();
        let end = 8 + header(&alone).trim_end().len() - 1;
        assert!(ours[..8] == theirs[..8] && ours[end..] == theirs[end..], "{}", header(&ours));
        but_for_order += 1;
    }
    assert!(whole > 300 && but_for_order > 300, "{whole} {but_for_order}");
}

/// Every way to write a file writes the same.
#[test]
fn each_way_to_save_gives_the_bytes_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut random = random_numbers(3);
    for _ in 0..20 {
        let mut set = Set::random(&mut random);
        while set.metadata.len() > 1 {
            set.metadata.pop_last();
        }
        let (expected, options) = (set.reference(), set.options());
        save(&path, set.views(), &options).unwrap();
        assert!(fs::read(&path).unwrap() == expected);

        let mut sent = Vec::new();
        write_to(&mut sent, set.views(), &options).unwrap();
        assert!(sent == expected);

        let specs = set.views().map(|(name, view)| (name, view.dtype(), view.shape()));
        let writer = StreamWriter::create(&path, specs, &options).unwrap();
        for (name, view) in set.views() {
            writer.tensor(name).unwrap().write_bytes_at(0, view.data()).unwrap();
        }
        writer.finish().unwrap();
        assert!(fs::read(&path).unwrap() == expected);
    }
}

/// candle's own save and this crate's, of the same tensors.
#[test]
fn candle_tensors_give_the_bytes_of_candle() {
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
    let dtypes =
        [DType::BF16, DType::F16, DType::F32, DType::I64, DType::F64, DType::U8, DType::U32];
    let tensors: HashMap<String, candle_core::Tensor> = (0..14)
        .map(|i| {
            let tensor = candle_core::Tensor::arange(0_f32, 6.0, &Device::Cpu)
                .unwrap()
                .reshape((2, 3))
                .unwrap();
            let tensor = if i < 7 { tensor } else { tensor.t().unwrap() };
            (format!("t.{}", (i * 5) % 14), tensor.to_dtype(dtypes[i % 7]).unwrap())
        })
        .collect();
    safetensors_candle::save(&ours, &tensors, &SaveOptions::new()).unwrap();
    candle_core::safetensors::save(&tensors, &theirs).unwrap();
    assert!(fs::read(ours).unwrap() == fs::read(theirs).unwrap());
}

/// The reference sorts by its `Dtype`, and this crate by its own.
#[test]
fn dtypes_have_the_order_of_the_reference() {
    assert!(Dtype::ALL.is_sorted());
    assert!(Dtype::ALL.iter().map(|&dtype| reference_dtype(dtype)).is_sorted());
}

/// Returns the text of a file's header, with its padding.
fn header(file: &[u8]) -> &str {
    let (len, rest) = file.split_first_chunk().unwrap();
    std::str::from_utf8(&rest[..u64::from_le_bytes(*len) as usize]).unwrap()
}

fn metadata(file: &[u8]) -> serde_json::Value {
    let mut json: serde_json::Value = serde_json::from_str(header(file)).unwrap();
    json["__metadata__"].take()
}
