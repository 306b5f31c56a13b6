//! Which arrays share memory, and are tied; reading as another dtype. `tests/it/conformance` of the
//! root package tests tied tensors in files.

use float8::F8E4M3;
use half::bf16;
use ndarray::{ArcArray, Array2, Ix1, Ix2, array, s};
use safetensors_core::convert::Overflow;
use safetensors_core::element::F4Packed;
use safetensors_core::tied::Tied;
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions, SafeTensors, SaveOptions, TensorBuf,
    TensorSource, serialize,
};
use safetensors_ndarray::{DynArray, ReadArrayExt, WrongNdim, array_source, load_with};

use crate::common::{place, said};

/// Saves the tensors with [`SaveOptions::tied`] and returns the names of the tensors in the file.
fn saved<S: TensorSource>(tensors: &[(&str, S)]) -> Vec<String> {
    let tensors = tensors.iter().map(|(name, source)| (*name, source));
    let options = SaveOptions::new().tied(Tied::new());
    let file = SafeTensors::parse(serialize(tensors, &options).unwrap()).unwrap();
    file.tensors().map(|tensor| tensor.name().to_owned()).collect()
}

#[test]
fn an_array_is_tied_in_any_memory_layout() {
    let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let mut stepped = DynArray::from(Array2::<i16>::zeros((6, 4)));
    if let DynArray::I16(array) = &mut stepped {
        array.slice_collapse(s![..;-2, 1..3]);
    }
    let packed = TensorBuf::from_vec(vec![4], vec![F4Packed(1), F4Packed(2)]).unwrap();
    let arrays: [DynArray; 3] =
        [weight.reversed_axes().into(), stepped, DynArray::from_buf(packed).unwrap()];
    for array in &arrays {
        let copy = array.clone();
        let names = saved(&[("tied", array), ("kept", array), ("other", &copy)]);
        assert_eq!(names.len(), 2, "{array:?}");
        assert!(names.contains(&"kept".into()) && names.contains(&"other".into()), "{names:?}");
    }
}

#[test]
fn views_are_tied_only_where_they_are_the_same() {
    let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let whole = || array_source(&weight);
    assert_eq!(saved(&[("a", whole()), ("b", whole())]), ["a"]);
    // An array and a view of all of it, and two owners of an allocation.
    let owner = DynArray::from(weight.clone());
    let view = owner.as_array::<f32, Ix2>().unwrap();
    let both: [(&str, Box<dyn TensorSource>); 2] =
        [("view", Box::new(array_source(&view))), ("array", Box::new(&owner))];
    assert_eq!(saved(&both), ["array"]);
    let shared = ArcArray::from(weight.clone());
    let again = shared.clone();
    assert_eq!(saved(&[("a", array_source(&shared)), ("b", array_source(&again))]), ["a"]);

    // None of these is tied: a transpose, which has the same address and length, parts of the
    // array, and an array of equal values.
    let others = [weight.t(), weight.t(), weight.slice(s![..1, ..]), weight.slice(s![.., ..1])];
    let others: Vec<_> = ["b", "c", "d", "e"].into_iter().zip(&others).collect();
    let mut tensors: Vec<_> = others.iter().map(|(name, it)| (*name, array_source(it))).collect();
    let equal = weight.clone();
    tensors.extend([("a", whole()), ("f", array_source(&equal))]);
    assert_eq!(saved(&tensors).len(), 6);
}

#[test]
fn tensors_are_read_as_another_dtype() {
    let (_dir, path) = place("model.safetensors");
    let halves = array![[0.5_f32, -1.5], [3.0, 448.0]].mapv(bf16::from_f32);
    let ids = array![1_i64, 1000];
    let blocks = TensorBuf::from_vec(vec![4], vec![F4Packed(0x21), F4Packed(0xf7)]).unwrap();
    let tensors: [(&str, Box<dyn TensorSource>); 3] = [
        ("halves", Box::new(array_source(&halves))),
        ("ids", Box::new(array_source(&ids))),
        ("blocks", Box::new(blocks)),
    ];
    safetensors_core::save(&path, tensors, &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensor = |name: &str| checkpoint.tensor(name).unwrap();
    let options = ConvertOptions::new();

    let read = tensor("halves").read_array_as::<f32, Ix2>(&options).unwrap();
    assert_eq!(read, array![[0.5, -1.5], [3.0, 448.0]]);
    // Reading as the tensor's own dtype converts nothing.
    assert_eq!(tensor("halves").read_array_as::<bf16, Ix2>(&options).unwrap(), halves);
    let blocks = tensor("blocks").read_array_as::<f32, Ix1>(&options).unwrap();
    assert_eq!(blocks, array![0.5, 1.0, 6.0, -6.0]);
    let saturated = ConvertOptions::new().overflow(Overflow::Saturate);
    let small = tensor("ids").read_array_as::<F8E4M3, Ix1>(&saturated).unwrap();
    assert_eq!(small.mapv(|value| value.to_f32()), array![1.0_f32, 448.0]);

    let error = tensor("ids").read_array_as::<u8, Ix1>(&options).unwrap_err();
    let ErrorKind::DoesNotFit { index: 1, to, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(*to, Dtype::U8);
    assert_eq!((error.tensor(), error.file()), (Some("ids"), path.to_str()));
    let error = tensor("halves").read_array_as::<f32, Ix1>(&options).unwrap_err();
    assert_eq!(said::<WrongNdim>(&error).found, [2, 2]);
    assert_eq!((error.tensor(), error.file()), (Some("halves"), path.to_str()));

    let loaded = load_with(&path, &LoadOptions::new().floats_as(Dtype::F32)).unwrap();
    assert!(matches!(&loaded["blocks"], DynArray::F32(array) if array.len() == 4));
    assert!(matches!(&loaded["ids"], DynArray::I64(_)));
}
