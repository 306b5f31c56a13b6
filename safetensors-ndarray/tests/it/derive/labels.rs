//! Fields with units and named axes.

use ndarray::{Array1, Array2, array};
use safetensors_ndarray::{NamedArrays, Reader};

use super::file;

#[derive(NamedArrays, Debug, PartialEq)]
struct Wind {
    t: Array1<f64>,
    #[safetensors(dimensions("t", "x"), units = "m/s")]
    u: Array2<f32>,
    #[safetensors(dimensions("t"))]
    gusts: Option<Array1<f32>>,
}

#[test]
fn names_and_units_are_written_and_compared() {
    let wind = Wind { t: array![0.0, 1.0], u: array![[1.0, 2.0], [3.0, 4.0]], gusts: None };
    let (_dir, path) = file(|w| wind.write_to(w).unwrap());
    let r = Reader::open(&path).unwrap();
    assert_eq!(r.dimensions("u").unwrap(), ["t", "x"]);
    assert_eq!(r.attribute("u", "units"), Some("m/s"));
    assert_eq!(r.checkpoint().metadata().len(), 2);
    assert_eq!(Wind::read_from(&r).unwrap(), wind);

    for (dimensions, units, expected) in [
        (r#"["t", "x"]"#, "m/s", None),
        (r#"["x", "t"]"#, "m/s", Some("should be the names t, x, found")),
        (r#"["t"]"#, "m/s", Some("should be the names t, x, found")),
        (r#"["t","x"]"#, "km/h", Some("should be m/s, found \"km/h\"")),
        ("", "", Some("missing in the metadata; it should be m/s")),
    ] {
        let (_dir, path) = file(|w| {
            w.add("t", &wind.t).unwrap();
            w.add("u", &wind.u).unwrap();
            for (name, value) in [("dimensions", dimensions), ("units", units)] {
                if !value.is_empty() {
                    w.attribute("u", name, value).unwrap();
                }
            }
        });
        match (Wind::load_from(&path), expected) {
            (found, None) => assert_eq!(found.unwrap(), wind),
            (found, Some(expected)) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        }
    }
}

#[test]
fn an_array_has_as_many_names_as_axes() {
    #[derive(NamedArrays)]
    struct Wrong {
        #[safetensors(dimensions("t"))]
        u: Array2<f32>,
    }
    let (_dir, path) = super::place();
    let error = Wrong { u: Array2::zeros((2, 2)) }.save_to(&path).unwrap_err();
    assert_eq!(error.tensor(), Some("u"));
    assert!(error.to_string().contains("a JSON array of 2 different names"), "{error}");
    assert!(!path.exists());
}
