//! Arrays that share memory are saved once. Also tests shards, and reading as another dtype.

use std::collections::BTreeMap;

use float8::F8E4M3;
use half::bf16;
use ndarray::{ArcArray, Array1, Array2, Ix1, Ix2, array, s};
use safetensors_core::convert::Overflow;
use safetensors_core::element::F4Packed;
use safetensors_core::error::TieProblem;
use safetensors_core::tied::{Tied, Views};
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions, SafeTensors, SaveOptions,
    ShardOptions, TensorBuf, TensorSource, serialize,
};
use safetensors_ndarray::{
    DynArray, Packed, ReadArrayExt, ViewArrayExt, WrongNdim, array_source, load, load_with,
    save_sharded,
};

/// Saves the tensors with [`SaveOptions::tied`] and returns the names of the tensors in the file.
fn saved<S: TensorSource>(tensors: &[(&str, S)], tied: Tied) -> Vec<String> {
    let tensors = tensors.iter().map(|(name, source)| (*name, source));
    let file =
        SafeTensors::parse(serialize(tensors, &SaveOptions::new().tied(tied)).unwrap()).unwrap();
    file.tensors().map(|tensor| tensor.name().to_owned()).collect()
}

#[test]
fn one_array_under_two_names_is_saved_once() {
    let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let mut stepped = DynArray::from(Array2::<i16>::zeros((6, 4)));
    if let DynArray::I16(array) = &mut stepped {
        array.slice_collapse(s![..;-2, 1..3]);
    }
    let packed =
        Packed::new(TensorBuf::from_vec(vec![4], vec![F4Packed(1), F4Packed(2)]).unwrap()).unwrap();
    let arrays: [DynArray; 4] = [
        weight.clone().into(),
        weight.clone().reversed_axes().into(),
        stepped,
        DynArray::Packed(packed),
    ];
    for array in &arrays {
        let copy = array.clone();
        let names = saved(&[("tied", array), ("kept", array), ("other", &copy)], Tied::new());
        assert_eq!(names.len(), 2, "{array:?}");
        assert!(names.contains(&"kept".into()) && names.contains(&"other".into()), "{names:?}");
    }
}

#[test]
fn views_are_tied_only_where_they_are_the_same() {
    let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let whole = || array_source(&weight);
    assert_eq!(saved(&[("a", whole()), ("b", whole())], Tied::new()), ["a"]);
    // An array and a view of all of it, and two owners of one allocation.
    let owner = DynArray::from(weight.clone());
    let view = owner.as_array::<f32, Ix2>().unwrap();
    let both: [(&str, Box<dyn TensorSource>); 2] =
        [("view", Box::new(array_source(&view))), ("array", Box::new(&owner))];
    assert_eq!(saved(&both, Tied::new()), ["array"]);
    let shared = ArcArray::from(weight.clone());
    let again = shared.clone();
    assert_eq!(
        saved(&[("a", array_source(&shared)), ("b", array_source(&again))], Tied::new()),
        ["a"]
    );

    // None of these is tied: a transpose, which has the same address and length, parts of the
    // array, and an array of equal values.
    let (transposed, row, column, equal) =
        (weight.t(), weight.row(0), weight.column(0), weight.clone());
    let other = [
        ("a", whole()),
        ("b", array_source(&transposed)),
        ("c", array_source(&transposed)),
        ("d", array_source(&row)),
        ("e", array_source(&column)),
        ("f", array_source(&equal)),
    ];
    assert_eq!(saved(&other, Tied::new()).len(), 6);

    // The same memory in another shape is another tensor. The caller decides what to do with it.
    let flat = weight.view().into_shape_with_order(4).unwrap();
    let two = [("a", whole()), ("flat", array_source(&flat))];
    let error = serialize(two.iter().map(|(n, s)| (*n, s)), &SaveOptions::new().tied(Tied::new()))
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Tie { problem: TieProblem::PartlyTied { .. } }),
        "{error}"
    );
    assert_eq!(saved(&two, Tied::new().views(Views::Save)).len(), 2);
}

#[test]
fn shards_hold_a_shared_array_once() {
    let dir = tempfile::tempdir().unwrap();
    let (embed, norm) =
        (DynArray::from(Array2::<f32>::eye(4)), DynArray::from(Array1::<f32>::ones(4)));
    let options = ShardOptions::new()
        .max_shard_size(64.into())
        .save_options(SaveOptions::new().tied(Tied::new()));
    let tensors = [("embed", &embed), ("norm", &norm), ("head", &embed)];
    let saved = save_sharded(dir.path(), tensors, &options).unwrap();
    assert_eq!((saved.files.len(), saved.total_size), (2, 64 + 16));
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 2);
    let expected = tensors.map(|(name, array)| (name.to_owned(), array.clone()));
    assert_eq!(load(dir.path()).unwrap(), BTreeMap::from(expected));

    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = save_sharded(&file, tensors, &options).unwrap_err();
    assert_eq!(error.file(), file.to_str(), "{error}");
}

#[test]
fn tensors_are_read_as_another_dtype() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let halves = array![[0.5_f32, -1.5], [3.0, 448.0]].mapv(bf16::from_f32);
    let bytes = array![0x38_u8, 0xfe].mapv(F8E4M3::from_bits);
    let ids = array![1_i64, 1000];
    let blocks = TensorBuf::from_vec(vec![4], vec![F4Packed(0x21), F4Packed(0xf7)]).unwrap();
    let tensors: [(&str, Box<dyn TensorSource>); 4] = [
        ("halves", Box::new(array_source(&halves))),
        ("bytes", Box::new(array_source(&bytes))),
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
    assert_eq!(
        tensor("bytes").read_array_as::<f64, ndarray::IxDyn>(&options).unwrap(),
        array![1.0, -448.0].into_dyn()
    );
    assert_eq!(
        tensor("blocks").read_array_as::<f32, Ix1>(&options).unwrap(),
        array![0.5, 1.0, 6.0, -6.0]
    );
    let saturated = ConvertOptions::new().overflow(Overflow::Saturate);
    let small = tensor("ids").read_array_as::<F8E4M3, Ix1>(&saturated).unwrap();
    assert_eq!(small.mapv(|value| value.to_f32()), array![1.0_f32, 448.0]);

    let error = tensor("ids").read_array_as::<u8, Ix1>(&options).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, to: Dtype::U8, .. }),
        "{error}"
    );
    assert_eq!((error.tensor(), error.file()), (Some("ids"), path.to_str()));
    let error = tensor("halves").read_array_as::<f32, Ix1>(&options).unwrap_err();
    let ErrorKind::Framework { source, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(source.downcast_ref::<WrongNdim>().unwrap().found, [2, 2]);
    assert_eq!((error.tensor(), error.file()), (Some("halves"), path.to_str()));

    let loaded = load_with(&path, &LoadOptions::new().floats_as(Dtype::F32)).unwrap();
    assert!(matches!(&loaded["blocks"], DynArray::F32(array) if array.len() == 4));
    assert!(matches!(&loaded["ids"], DynArray::I64(_)));
    assert_eq!(tensor("ids").read_array::<i64, Ix1>().unwrap(), ids);
    let view = SafeTensors::parse(std::fs::read(&path).unwrap()).unwrap();
    let view = view.view("ids").unwrap();
    assert!(cfg!(target_endian = "big") || view.as_array::<i64, Ix1>().unwrap() == ids);
}
