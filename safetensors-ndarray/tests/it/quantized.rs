//! Quantised weights: refused, as numbers, or as they are stored, by every way to read an array.

use std::path::Path;

use ndarray::{Array2, ArrayD, Ix2, IxDyn, SliceInfoElem, array, s};
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::{Checkpoint, Dtype, Error, LoadOptions, ReadAt, Result, TensorSource};
use safetensors_ndarray::{
    ArrayElement, DynArray, ReadArrayExt, Reader, SliceArrayExt, ViewArrayExt, Writer, load_with,
};
use safetensors_testing::quantized::{Quantized, check_error};

/// The dtype, the shape and the bytes of a tensor.
type Content = (Dtype, Vec<usize>, Vec<u8>);

fn content(array: impl TensorSource) -> Content {
    let mut bytes = Vec::new();
    let mut sink = |more: &[u8]| {
        bytes.extend_from_slice(more);
        Ok(())
    };
    array.write_to(&mut sink).unwrap();
    (array.dtype(), array.shape().to_vec(), bytes)
}

fn reader(path: &Path, quantized: QuantizedWeights) -> Result<Reader<impl ReadAt>> {
    Reader::open(path)?.quantized(quantized)
}

fn all<S: ReadAt>(reader: &Reader<S>, name: &str) -> Vec<SliceInfoElem> {
    let dims = reader.checkpoint().get(name).map_or(0, |array| array.shape().len());
    vec![SliceInfoElem::from(..); dims]
}

fn read_into<T: ArrayElement + Default, S: ReadAt>(
    reader: &Reader<S>,
    name: &str,
    read: impl FnOnce(&mut ArrayD<T>) -> Result<()>,
) -> Result<DynArray> {
    let shape = reader.checkpoint().get(name).map_or(vec![0], |array| array.shape().to_vec());
    let mut array = ArrayD::default(IxDyn(&shape));
    read(&mut array)?;
    Ok(array.into())
}

/// Calls a generic function with the type of the elements of a dtype.
macro_rules! typed {
    ($dtype:expr, $T:ident => $work:expr) => {
        match $dtype {
            Dtype::U8 => {
                type $T = u8;
                $work
            }
            Dtype::I8 => {
                type $T = i8;
                $work
            }
            Dtype::I32 => {
                type $T = i32;
                $work
            }
            Dtype::U32 => {
                type $T = u32;
                $work
            }
            Dtype::BF16 => {
                type $T = half::bf16;
                $work
            }
            Dtype::F8_E4M3 => {
                type $T = float8::F8E4M3;
                $work
            }
            Dtype::F8_E5M2 => {
                type $T = float8::F8E5M2;
                $work
            }
            Dtype::F32 => {
                type $T = f32;
                $work
            }
            dtype => panic!("{dtype}"),
        }
    };
}

/// Reads a tensor of this dtype.
type Way = fn(&Path, &str, Dtype, QuantizedWeights) -> Result<DynArray>;

const WAYS: &[(&str, Way)] = &[
    ("load_with", |path, name, _, quantized| {
        let mut all = load_with(path, &LoadOptions::new().quantized(quantized))?;
        Ok(all.remove(name).unwrap())
    }),
    ("read_any", |path, name, _, quantized| reader(path, quantized)?.read_any(name)),
    ("read", |path, name, dtype, quantized| {
        let reader = reader(path, quantized)?;
        typed!(dtype, T => reader.read::<T, IxDyn>(name).map(DynArray::from))
    }),
    ("slice", |path, name, dtype, quantized| {
        let reader = reader(path, quantized)?;
        let all = all(&reader, name);
        typed!(dtype, T => reader.slice::<T, _>(name, &all[..]).map(DynArray::from))
    }),
    ("read_into", |path, name, dtype, quantized| {
        let reader = reader(path, quantized)?;
        typed!(dtype, T => {
            read_into::<T, _>(&reader, name, |array| reader.read_into(name, array.view_mut()))
        })
    }),
    ("slice_into", |path, name, dtype, quantized| {
        let (reader, all) = (reader(path, quantized)?, all(&reader(path, quantized)?, name));
        typed!(dtype, T => read_into::<T, _>(&reader, name, |array| {
            reader.slice_into(name, &all[..], array.view_mut())
        }))
    }),
];

/// Ways that convert.
const AS_F32: &[(&str, Way)] = &[
    ("load_with, converted", |path, name, _, quantized| {
        let options = LoadOptions::new().all_as(Dtype::F32).quantized(quantized);
        Ok(load_with(path, &options)?.remove(name).unwrap())
    }),
    ("read_as", |path, name, _, quantized| {
        reader(path, quantized)?.read_as::<f32, IxDyn>(name).map(DynArray::from)
    }),
    ("slice_as", |path, name, _, quantized| {
        let reader = reader(path, quantized)?;
        let all = all(&reader, name);
        reader.slice_as::<f32, _>(name, &all[..]).map(DynArray::from)
    }),
];

/// The ways without an option.
fn refused_without_an_option(path: &Path, name: &str, dtype: Dtype) -> Vec<(&'static str, Error)> {
    let (checkpoint, memory) = (Checkpoint::open(path).unwrap(), Reader::open_in_memory(path));
    let memory = memory.unwrap();
    let all = all(&memory, name);
    let rows = |tensor: &safetensors_core::LazyTensor<'_, _>| tensor.rows(&[0])?.read_any();
    let tensor = checkpoint.tensor(name);
    let tensor = || tensor.as_ref().map_err(|_| checkpoint.missing(name));
    let mut errors = vec![
        ("read_any of a tensor", tensor().and_then(|tensor| tensor.read_any()).unwrap_err()),
        ("read_any of rows", tensor().and_then(rows).unwrap_err()),
        ("view", typed!(dtype, T => memory.view::<T, IxDyn>(name).unwrap_err())),
    ];
    if dtype != Dtype::F32 {
        let error = tensor().and_then(|it| it.read_array_as::<f32, IxDyn>(&Default::default()));
        errors.push(("read_array_as", error.unwrap_err()));
        let slice = tensor().and_then(|tensor| tensor.slice_array(&all[..]));
        let error = slice.and_then(|slice| slice.read_as::<f32>(&Default::default()));
        errors.push(("ArraySlice::read_as", error.unwrap_err()));
    }
    errors
}

#[test]
fn every_way_refuses_codes_or_reads_the_numbers_or_the_codes_of_every_kind() {
    for fixture in Quantized::kinds() {
        let (path, stored) = (fixture.model(), fixture.open());
        let numbers = fixture.open().dequantized().unwrap();
        let weights = stored.quantized_weights().unwrap();
        assert!(!weights.is_empty(), "{}", fixture.name);
        let is_codes = |name: &str| weights.iter().any(|weight| weight.tensors[0] == name);
        for weight in &weights {
            let what = |way: &str| format!("{} of {}, {way}", weight.name, fixture.name);
            let number = content(numbers.tensor(&weight.name).unwrap());
            let codes = stored.tensor(&weight.tensors[0]).unwrap();
            for (way, read) in WAYS.iter().chain(AS_F32) {
                let what = what(way);
                for name in [&weight.name, &weight.tensors[0]] {
                    check_error(
                        &what,
                        &read(&path, name, weight.dtype, Refuse).unwrap_err(),
                        weight,
                    );
                }
                let read_numbers = read(&path, &weight.name, Dtype::F32, Numbers).unwrap();
                assert!(content(read_numbers) == number, "{what}");
                let as_stored = read(&path, codes.name(), weight.dtype, Stored).unwrap();
                let expected = match AS_F32.iter().any(|(converts, _)| converts == way) {
                    false => content(codes),
                    true => {
                        let buf = codes.read().unwrap();
                        content(buf.convert(Dtype::F32, &Default::default()).unwrap())
                    }
                };
                assert!(content(as_stored) == expected, "{what}");
            }
            for name in [&weight.name, &weight.tensors[0]] {
                for (way, error) in refused_without_an_option(&path, name, weight.dtype) {
                    check_error(&what(way), &error, weight);
                }
            }
        }
        let reader = Reader::open(&path).unwrap();
        for plain in reader.names().filter(|name| !is_codes(name)) {
            reader.read_any(plain).unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
        }
    }
}

#[test]
fn the_own_type_of_codes_names_them_for_a_tensor_without_options() {
    let path = Quantized::named("ct-int-channel").model();
    let (checkpoint, memory) = (Checkpoint::open(&path), Reader::open_in_memory(&path).unwrap());
    let read: Array2<i8> =
        checkpoint.unwrap().tensor("layer.weight").unwrap().read_array().unwrap();
    assert_eq!(read, memory.array("layer.weight").unwrap().as_array::<i8, Ix2>().unwrap());
}

/// Codes of `w`, which are selected along the dimension `x`.
fn labelled(path: &Path) {
    let w = Writer::create(path).unwrap();
    w.add("x", &array![0.0, 1.0]).unwrap();
    w.add("w", &array![[100_i8, -100]]).unwrap();
    w.add("w_scale", &array![0.5_f32]).unwrap();
    w.dimensions("w", &["y", "x"]).unwrap();
    w.finish().unwrap();
}

#[test]
fn parts_by_labels_take_the_option_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("labelled.safetensors");
    labelled(&path);
    let weight = &Checkpoint::open(&path).unwrap().quantized_weights().unwrap()[0];
    let refusing = Reader::open(&path).unwrap();
    let part = refusing.select("x", 1.0..).unwrap();
    check_error("read", &part.read::<i8, Ix2>("w").unwrap_err(), weight);
    check_error("read_as", &part.read_as::<f32, Ix2>("w").unwrap_err(), weight);
    check_error("slice", &refusing.slice::<i8, _>("w", s![.., 1]).unwrap_err(), weight);
    for (quantized, expected) in [(Numbers, -50.0), (Stored, -100.0)] {
        let reader = reader(&path, quantized).unwrap();
        let part = reader.select("x", 1.0..).unwrap();
        assert_eq!(part.read_as::<f32, Ix2>("w").unwrap(), array![[expected]]);
    }
}

#[cfg(feature = "npz")]
#[test]
fn an_archive_gets_no_codes_unless_a_reader_gives_them() {
    use safetensors_ndarray::npz::{self, Compression};

    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("a.safetensors"), dir.path().join("a.npz"));
    labelled(&path);
    let weight = &Checkpoint::open(&path).unwrap().quantized_weights().unwrap()[0];
    let error = npz::from_safetensors(&path, &archive, Compression::Stored).unwrap_err();
    check_error("npz", &error, weight);
    assert!(!archive.exists());
    let numbers = reader(&path, Numbers).unwrap();
    let arrays = numbers.arrays().map(|array| (array.name(), array));
    npz::save(&archive, arrays, Compression::Stored).unwrap();
    let saved = npz::load(&archive).unwrap();
    assert_eq!(saved["w"], DynArray::from(array![[50.0_f32, -50.0]]));
}

#[cfg(feature = "derive")]
mod fields {
    use safetensors_ndarray::{NamedArrays, SafeTensors};

    use super::*;

    #[derive(SafeTensors, Debug)]
    struct Codes {
        x: ndarray::Array1<f64>,
        w: Array2<i8>,
        w_scale: ndarray::Array1<f32>,
    }

    #[derive(SafeTensors, Debug)]
    struct Weights {
        x: ndarray::Array1<f64>,
        w: Array2<f32>,
    }

    /// The weight is stored under another name.
    #[derive(SafeTensors, Debug)]
    #[allow(dead_code, reason = "it is never loaded")]
    struct Model {
        #[safetensors(rename = "layer.weight")]
        weight: Array2<f32>,
    }

    #[test]
    fn a_struct_of_arrays_takes_the_option_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        labelled(&path);
        let weight = &Checkpoint::open(&path).unwrap().quantized_weights().unwrap()[0];
        check_error("codes", &Codes::load_from(&path).unwrap_err(), weight);
        check_error("weights", &Weights::load_from(&path).unwrap_err(), weight);
        let memory = Reader::open_in_memory(&path).unwrap();
        check_error("views", &Codes::view_from(&memory).unwrap_err(), weight);
        let Weights { x, w } = Weights::read_from(&reader(&path, Numbers).unwrap()).unwrap();
        assert_eq!((x.len(), w), (2, array![[50.0, -50.0]]));
        let codes = Codes::read_from(&reader(&path, Stored).unwrap()).unwrap();
        assert_eq!(codes.w, array![[100, -100]]);
        assert_eq!((codes.x.len(), codes.w_scale.len()), (2, 1));

        let gptq = Quantized::named("gptq-v1-4bits");
        let weight = &gptq.open().quantized_weights().unwrap()[0];
        check_error("GPTQ", &Model::load_from(gptq.model()).unwrap_err(), weight);
    }
}
