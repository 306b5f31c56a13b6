//! Variables of a `VarMap`, saved and loaded.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use safetensors_candle::train::{self, StateOptions};
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, LoadOptions, SafeTensors, TensorBuf, Widening};

use super::support::{
    bits, extra, get, map, mismatches, missing, model, quick, save_bufs, shards, values, var,
};

use crate::common::place;

#[test]
fn variables_come_back_bit_for_bit_from_a_file_and_from_shards() {
    let dir = tempfile::tempdir().unwrap();
    let (file, sharded) = (dir.path().join("a.safetensors"), dir.path().join("sharded"));
    let saved = model(1);
    train::save(&file, &saved, &quick().metadata([("epoch", "7")])).unwrap();
    let options = shards(40).metadata([("epoch", "7")]);
    assert!(train::save_sharded(&sharded, &saved, &options).unwrap().files.len() > 2);

    for path in [&file, &sharded, &sharded.join("model.safetensors.index.json")] {
        let fresh = model(50);
        let kept = get(&fresh, "a.bias");
        let loaded = train::load(path, &fresh).unwrap();
        assert_eq!(values(&fresh), values(&saved));
        assert_eq!(bits(&kept), bits(&get(&saved, "a.bias")), "the variable itself is set");
        assert_eq!(loaded.metadata["epoch"], "7");
        assert!(loaded.missing.is_empty() && loaded.extra.is_empty());
    }
    let tensors = safetensors_candle::load(&file, &Device::Cpu).unwrap();
    assert_eq!(bits(&tensors["b.weight"]), bits(&get(&saved, "b.weight")));
}

#[test]
fn the_same_variables_give_the_same_bytes_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..40).map(|i| format!("layer.{i}")).collect();
    let save = |order: &mut dyn Iterator<Item = &String>, file: &str| {
        let map = VarMap::new();
        for name in order {
            let seed = name.len() as u32;
            map.data().lock().unwrap().insert(name.clone(), var(&[3], seed));
        }
        let options = quick().order(safetensors_core::save::Order::Given);
        train::save(dir.path().join(file), &map, &options).unwrap();
        std::fs::read(dir.path().join(file)).unwrap()
    };
    let forwards = save(&mut names.iter(), "a.safetensors");
    assert!(forwards == save(&mut names.iter().rev(), "b.safetensors"));
    let mut sorted = names.clone();
    sorted.sort_unstable();
    let file = SafeTensors::from_source(forwards).unwrap();
    assert_eq!(file.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), sorted);
}

#[test]
fn every_difference_is_listed_at_once_and_nothing_is_set() {
    let (dir, path) = place("a.safetensors");
    let other = map([
        ("a.weight", var(&[3, 4], 9)),
        ("b.weight", Var::zeros((2, 4), DType::F64, &Device::Cpu).unwrap()),
        ("z", var(&[1], 9)),
        ("scale", var(&[], 9)),
        ("aa", var(&[1], 9)),
    ]);
    train::save(&path, &other, &quick()).unwrap();
    let expected = [
        Mismatch::Shape { name: "a.weight".into(), expected: vec![4, 3], found: vec![3, 4] },
        Mismatch::Dtype { name: "b.weight".into(), expected: Dtype::F32, found: Dtype::F64 },
        missing("a.bias"),
        extra("aa"),
        extra("z"),
    ];
    let fresh = model(50);
    let error = train::load(&path, &fresh).unwrap_err();
    assert_eq!(mismatches(&error), expected);
    assert_eq!(error.file(), Some(path.to_str().unwrap()));
    let message = error.to_string();
    for part in [
        r#"missing: "a.bias"; not needed: "aa", "z"; "#,
        r#""a.weight" should have shape [4, 3], found [3, 4]"#,
        r#""b.weight" should have dtype F32, found F64"#,
        "in StateOptions, allow_missing(true) loads the rest, allow_extra(true) skips the \
         tensors that are not needed, cast(true) converts dtypes",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(values(&fresh), values(&model(50)));

    // An allowed difference is not listed. The rest still is.
    let options = StateOptions::new().allow_missing(true);
    let error = options.load(&path, &fresh).unwrap_err();
    assert!(!mismatches(&error).contains(&missing("a.bias")));
    assert!(error.to_string().ends_with(
        "; in StateOptions, allow_extra(true) skips the tensors that are not needed, cast(true) \
         converts dtypes"
    ));
    let options = options.allow_extra(true).cast(true);
    let error = options.load(&path, &fresh).unwrap_err();
    assert_eq!(mismatches(&error), &expected[..1]);
    assert!(error.to_string().ends_with("found [3, 4]"), "{error}");
    assert_eq!(values(&fresh), values(&model(50)));

    // A sharded checkpoint is named by its index.
    train::save_sharded(dir.path().join("s"), &other, &shards(8)).unwrap();
    let error = train::load(dir.path().join("s"), &fresh).unwrap_err();
    assert_eq!(mismatches(&error), expected);
    assert!(error.file().unwrap().ends_with("model.safetensors.index.json"), "{error}");
}

#[test]
fn empty_tensors_and_every_dtype_of_variables_are_restored() {
    let (_dir, path) = place("a.safetensors");
    let device = Device::Cpu;
    let dtypes = [
        ("u8", DType::U8),
        ("u32", DType::U32),
        ("i16", DType::I16),
        ("i32", DType::I32),
        ("i64", DType::I64),
        ("bf16", DType::BF16),
        ("f16", DType::F16),
        ("f32", DType::F32),
        ("f64", DType::F64),
        ("f8", DType::F8E4M3),
    ];
    let of = |values: &[f32]| {
        let source = Tensor::new(values, &device).unwrap();
        let each = dtypes.map(|(name, dtype)| {
            (name, Var::from_tensor(&source.to_dtype(dtype).unwrap()).unwrap())
        });
        let empty = Var::zeros((0, 3), DType::F32, &device).unwrap();
        map(each.into_iter().chain([("empty", empty)]))
    };
    train::save(&path, &of(&[1.0, 2.0, 3.0]), &quick()).unwrap();
    let fresh = of(&[0.0, 0.0, 0.0]);
    train::load(&path, &fresh).unwrap();
    assert_eq!(values(&fresh), values(&of(&[1.0, 2.0, 3.0])));
}

#[test]
fn dtypes_that_candle_lacks_are_widened_into_variables_of_the_wider_dtype_only() {
    let (_dir, path) = place("a.safetensors");
    let mask = TensorBuf::from_vec(vec![2], vec![true, false]).unwrap();
    let rope = safetensors_core::TensorView::new(Dtype::C64, &[1], &[0; 8]).unwrap();
    let rope = TensorBuf::from_view(&rope).unwrap();
    save_bufs(&path, &[("mask", mask), ("rope", rope)], &quick());
    let of = |mask: DType, rope: &[usize]| {
        map([
            ("mask", Var::ones(2, mask, &Device::Cpu).unwrap()),
            ("rope", Var::ones(rope, DType::F32, &Device::Cpu).unwrap()),
        ])
    };
    let fits = of(DType::U8, &[1, 2]);
    train::load(&path, &fits).unwrap();
    assert_eq!(get(&fits, "mask").to_vec1::<u8>().unwrap(), [1, 0]);
    assert_eq!(get(&fits, "rope").to_vec2::<f32>().unwrap(), [[0.0, 0.0]]);

    let wider = Mismatch::Dtype { name: "mask".into(), expected: Dtype::U32, found: Dtype::BOOL };
    let shape = Mismatch::Shape { name: "rope".into(), expected: vec![1], found: vec![1, 2] };
    let error = train::load(&path, &of(DType::U32, &[1])).unwrap_err();
    assert_eq!(mismatches(&error), [wider, shape]);

    let exact = LoadOptions::new().widening(Widening::Refuse);
    let options = StateOptions::new().load_options(exact);
    let error = options.load(&path, &of(DType::U8, &[1, 2])).unwrap_err();
    assert!(matches!(mismatches(&error), [Mismatch::Dtype { .. }, ..]), "{error}");
}
