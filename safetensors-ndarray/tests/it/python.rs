//! Files of Python's library, read bit by bit, and files for it.
//!
//! `fixtures/generate.py` wrote the fixture. `dev/scripts/python_interop.py` sets
//! `SAFETENSORS_INTEROP_DIR`, and reads with Python the files that this program writes there.

use std::path::{Path, PathBuf};

use ndarray::{Array2, Array3, Axis, Ix0, Ix2, Ix3, ShapeBuilder, arr0, s};
use safetensors_core::{Dtype, TensorBuf};
use safetensors_ndarray::{DynArray, Reader, Writer};
use safetensors_testing::tensors::file_bytes;

const SHAPE: (usize, usize, usize) = (3, 4, 5);

/// The dtypes that NumPy or `ml_dtypes` have, and that the library can write.
const DTYPES: [Dtype; 16] = [
    Dtype::BOOL,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::U32,
    Dtype::I32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::C64,
    Dtype::BF16,
    Dtype::F8_E4M3,
    Dtype::F8_E5M2,
];

/// Every kind of bits, as in `generate.py`.
fn bits(dtype: Dtype) -> Vec<u8> {
    let bytes = 3 * 4 * 5 * dtype.bits() as usize / 8;
    let byte = |i: usize| if dtype == Dtype::BOOL { (i % 2) as u8 } else { (89 * i + 127) as u8 };
    (0..bytes).map(byte).collect()
}

fn array(dtype: Dtype) -> DynArray {
    let buf = TensorBuf::filled_by(dtype, vec![3, 4, 5], |data| {
        data.copy_from_slice(&bits(dtype));
        Ok(())
    });
    DynArray::from_buf(buf.unwrap()).unwrap()
}

fn u() -> Array3<f64> {
    Array3::from_shape_fn(SHAPE, |(i, j, k)| (100 * i + 10 * j + k) as f64)
}

#[test]
fn a_file_of_python_is_read_bit_by_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/python.safetensors");
    let r = Reader::open(path).unwrap();
    for dtype in DTYPES {
        let found = r.read_any(dtype.name()).unwrap();
        assert_eq!((found.dtype(), found.shape()), (dtype, &[3, 4, 5][..]));
        assert_eq!(file_bytes(&found), bits(dtype), "{dtype}");
    }
    assert_eq!(r.read::<f64, Ix3>("u").unwrap(), u());
    assert_eq!(r.slice::<f64, _>("u", s![..;-2, 1, ..]).unwrap(), u().slice(s![..;-2, 1, ..]));
    assert_eq!(r.read::<i64, Ix0>("scalar").unwrap(), arr0(7));
    assert_eq!(r.read::<f32, Ix2>("empty").unwrap().dim(), (0, 3));
    assert_eq!(r.checkpoint().len(), DTYPES.len() + 3);
    assert_eq!(r.checkpoint().metadata()["title"], "wind");
    assert_eq!(r.attribute("u", "long_name"), Some("Wind von Ost, »α«"));
    assert_eq!(r.attribute("u", "units"), Some("m/s"));
}

#[test]
fn files_for_python() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = std::env::var_os("SAFETENSORS_INTEROP_DIR")
        .map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let path = directory.join("written.safetensors");
    let w = Writer::create(&path).unwrap();
    for dtype in DTYPES {
        w.add_tensor(dtype.name(), &array(dtype)).unwrap();
    }
    let u = u();
    w.add("u", &u).unwrap();
    w.add("scalar", &arr0(7_i64)).unwrap();
    w.add("empty", &Array2::<f32>::zeros((0, 3))).unwrap();
    // The layouts that Python's library writes wrong.
    let mut fortran = Array3::zeros(SHAPE.f());
    fortran.assign(&u);
    w.add("fortran", &fortran).unwrap();
    w.add("transposed", &u.t()).unwrap();
    w.add("reversed", &u.slice(s![..;-1, .., ..;-1])).unwrap();
    w.add("strided", &u.slice(s![.., ..;2, ..;3])).unwrap();
    w.add("broadcast", &u.broadcast((2, 3, 4, 5)).unwrap()).unwrap();
    for axis in 0..3 {
        let mut step_shape = vec![3, 4, 5];
        step_shape.remove(axis);
        let grown = w.grow(&format!("grown {axis}"), Axis(axis), &step_shape).unwrap();
        fortran.axis_iter(Axis(axis)).for_each(|step| grown.append(&step).unwrap());
    }
    w.metadata([("title", "wind")]);
    w.attribute("u", "units", "m/s").unwrap();
    w.attribute("u", "long_name", "Wind von Ost, »α«").unwrap();
    w.finish().unwrap();

    let r = Reader::open(&path).unwrap();
    for name in ["u", "fortran", "grown 0", "grown 1", "grown 2"] {
        assert_eq!(r.read::<f64, Ix3>(name).unwrap(), u, "{name}");
    }
    assert_eq!(r.read::<f64, Ix3>("strided").unwrap(), u.slice(s![.., ..;2, ..;3]));

    #[cfg(feature = "npz")]
    {
        use safetensors_ndarray::{array_source, npz};

        let no_type = [Dtype::BF16, Dtype::F8_E4M3, Dtype::F8_E5M2];
        let arrays = DTYPES.iter().filter(|dtype| !no_type.contains(dtype));
        let arrays = arrays.map(|&dtype| (dtype.name(), array(dtype)));
        npz::save(directory.join("written.npz"), arrays, npz::Compression::Deflated).unwrap();
        npz::write_npy(directory.join("written.npy"), &fortran.view()).unwrap();
        let source = [("u", array_source(&u))];
        npz::save(directory.join("u.npz"), source, npz::Compression::Stored).unwrap();
        // The file that Python wrote, if it did.
        let python = directory.join("python.npz");
        if python.exists() {
            npz::to_safetensors(python, directory.join("from-npz.safetensors")).unwrap();
        }
    }
}
