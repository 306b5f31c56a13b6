//! Quantised weights: refused, as numbers, or as they are stored, by every way to read an array.
//!
//! `tests/it/conformance` of the root package reads the weights of every scheme.

use std::path::{Path, PathBuf};

use ndarray::{Array2, Ix2, array, s};
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Checkpoint, Dtype, LoadOptions, ReadAt, Result};
use safetensors_ndarray::{DynArray, ReadArrayExt, Reader, ViewArrayExt, Writer, load_with};
use safetensors_testing::quantized::{Quantized, check_error};
use tempfile::TempDir;

use crate::common::place;

/// Codes of `w`, which are selected along the dimension `x`.
struct Labelled {
    _dir: TempDir,
    path: PathBuf,
    weight: QuantizedWeight,
}

fn labelled() -> Labelled {
    let (dir, path) = place("labelled.safetensors");
    let w = Writer::create(&path).unwrap();
    w.add("x", &array![0.0, 1.0]).unwrap();
    w.add("w", &array![[100_i8, -100]]).unwrap();
    w.add("w_scale", &array![0.5_f32]).unwrap();
    w.dimensions("w", &["y", "x"]).unwrap();
    w.finish().unwrap();
    let weight = Checkpoint::open(&path).unwrap().quantized_weights().unwrap().remove(0);
    Labelled { _dir: dir, path, weight }
}

fn reader(path: &Path, quantized: QuantizedWeights) -> Result<Reader<impl ReadAt>> {
    Reader::open(path)?.quantized(quantized)
}

/// Reads the codes, or the numbers, of `w` as they are.
type Way = fn(&Path, QuantizedWeights) -> Result<DynArray>;

const WAYS: &[(&str, Way)] = &[
    ("load_with", |path, quantized| {
        let mut all = load_with(path, &LoadOptions::new().quantized(quantized))?;
        Ok(all.remove("w").unwrap())
    }),
    ("read_any", |path, quantized| reader(path, quantized)?.read_any("w")),
    ("read", |path, quantized| match quantized {
        Numbers => reader(path, quantized)?.read::<f32, Ix2>("w").map(DynArray::from),
        _ => reader(path, quantized)?.read::<i8, Ix2>("w").map(DynArray::from),
    }),
    ("slice", |path, quantized| match quantized {
        Numbers => reader(path, quantized)?.slice::<f32, _>("w", s![.., ..]).map(DynArray::from),
        _ => reader(path, quantized)?.slice::<i8, _>("w", s![.., ..]).map(DynArray::from),
    }),
    ("read_into", |path, quantized| {
        let reader = reader(path, quantized)?;
        if quantized == Numbers {
            let mut numbers = Array2::<f32>::zeros((1, 2));
            return reader.read_into("w", numbers.view_mut()).map(|()| numbers.into());
        }
        let mut codes = Array2::<i8>::zeros((1, 2));
        reader.read_into("w", codes.view_mut()).map(|()| codes.into())
    }),
    ("slice_into", |path, quantized| {
        let reader = reader(path, quantized)?;
        if quantized == Numbers {
            let mut numbers = Array2::<f32>::zeros((1, 2));
            return reader.slice_into("w", s![.., ..], numbers.view_mut()).map(|()| numbers.into());
        }
        let mut codes = Array2::<i8>::zeros((1, 2));
        reader.slice_into("w", s![.., ..], codes.view_mut()).map(|()| codes.into())
    }),
];

/// Ways that convert to F32.
const AS_F32: &[(&str, Way)] = &[
    ("load_with, converted", |path, quantized| {
        let options = LoadOptions::new().all_as(Dtype::F32).quantized(quantized);
        Ok(load_with(path, &options)?.remove("w").unwrap())
    }),
    ("read_as", |path, quantized| {
        reader(path, quantized)?.read_as::<f32, Ix2>("w").map(DynArray::from)
    }),
    ("slice_as", |path, quantized| {
        reader(path, quantized)?.slice_as::<f32, _>("w", s![.., ..]).map(DynArray::from)
    }),
    ("select", |path, quantized| {
        let reader = reader(path, quantized)?;
        reader.select("x", 0.0..)?.read_as::<f32, Ix2>("w").map(DynArray::from)
    }),
];

#[test]
fn every_way_refuses_codes_or_reads_the_numbers_or_the_codes() {
    let labelled = labelled();
    let Labelled { path, weight, .. } = &labelled;
    let numbers = DynArray::from(array![[50.0_f32, -50.0]]);
    let codes = DynArray::from(array![[100_i8, -100]]);
    let as_f32 = DynArray::from(array![[100.0_f32, -100.0]]);
    for (ways, stored) in [(WAYS, codes), (AS_F32, as_f32)] {
        for (way, read) in ways {
            check_error(way, &read(path, Refuse).unwrap_err(), weight);
            assert_eq!(read(path, Numbers).unwrap(), numbers, "{way}");
            assert_eq!(read(path, Stored).unwrap(), stored, "{way}");
        }
    }
}

#[test]
fn ways_without_an_option_refuse_codes_unless_their_own_type_names_them() {
    let labelled = labelled();
    let Labelled { path, weight, .. } = &labelled;
    let checkpoint = Checkpoint::open(path).unwrap();
    let memory = Reader::open_in_memory(path).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    for (way, error) in [
        ("read_any", tensor.read_any().unwrap_err()),
        ("read_any of rows", tensor.rows(&[0]).unwrap().read_any().unwrap_err()),
        ("read_array_as", tensor.read_array_as::<f32, Ix2>(&Default::default()).unwrap_err()),
        ("view", memory.view::<i8, Ix2>("w").unwrap_err()),
    ] {
        check_error(way, &error, weight);
    }
    let read: Array2<i8> = tensor.read_array().unwrap();
    assert_eq!(read, memory.array("w").unwrap().as_array::<i8, Ix2>().unwrap());
}

#[test]
fn a_quantised_weight_is_refused_by_its_own_name() {
    let gptq = Quantized::named("gptq-v1-4bits");
    let weight = &gptq.open().quantized_weights().unwrap()[0];
    let error = Reader::open(gptq.model()).unwrap().read::<f32, Ix2>(&weight.name).unwrap_err();
    check_error("read", &error, weight);
}

#[cfg(feature = "npz")]
#[test]
fn an_archive_gets_no_codes_unless_a_reader_gives_them() {
    use safetensors_ndarray::npz::{self, Compression};

    let labelled = labelled();
    let Labelled { path, weight, .. } = &labelled;
    let archive = path.with_extension("npz");
    let error = npz::from_safetensors(path, &archive, Compression::Stored).unwrap_err();
    check_error("npz", &error, weight);
    assert!(!archive.exists());
    let numbers = reader(path, Numbers).unwrap();
    let arrays = numbers.arrays().map(|array| (array.name(), array));
    npz::save(&archive, arrays, Compression::Stored).unwrap();
    let saved = npz::load(&archive).unwrap();
    assert_eq!(saved["w"], DynArray::from(array![[50.0_f32, -50.0]]));
}

#[cfg(feature = "derive")]
mod fields {
    use safetensors_ndarray::NamedArrays;

    use super::*;

    #[derive(NamedArrays, Debug)]
    struct Codes {
        x: ndarray::Array1<f64>,
        w: Array2<i8>,
        w_scale: ndarray::Array1<f32>,
    }

    #[derive(NamedArrays, Debug)]
    struct Weights {
        x: ndarray::Array1<f64>,
        w: Array2<f32>,
    }

    /// The weight is stored under another name.
    #[derive(NamedArrays, Debug)]
    #[allow(dead_code, reason = "it is never loaded")]
    struct Model {
        #[safetensors(rename = "layer.weight")]
        weight: Array2<f32>,
    }

    #[test]
    fn a_struct_of_arrays_takes_the_option_too() {
        let labelled = labelled();
        let Labelled { path, weight, .. } = &labelled;
        check_error("codes", &Codes::load_from(path).unwrap_err(), weight);
        check_error("weights", &Weights::load_from(path).unwrap_err(), weight);
        let memory = Reader::open_in_memory(path).unwrap();
        check_error("views", &Codes::view_from(&memory).unwrap_err(), weight);
        let Weights { x, w } = Weights::read_from(&reader(path, Numbers).unwrap()).unwrap();
        assert_eq!((x.len(), w), (2, array![[50.0, -50.0]]));
        let codes = Codes::read_from(&reader(path, Stored).unwrap()).unwrap();
        assert_eq!(codes.w, array![[100, -100]]);
        assert_eq!((codes.x.len(), codes.w_scale.len()), (2, 1));

        let gptq = Quantized::named("gptq-v1-4bits");
        let weight = &gptq.open().quantized_weights().unwrap()[0];
        check_error("GPTQ", &Model::load_from(gptq.model()).unwrap_err(), weight);
    }
}
