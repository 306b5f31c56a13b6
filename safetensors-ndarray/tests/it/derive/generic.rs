//! Structs with parameters, and the ways to name the crate.

use std::marker::PhantomData;

use ndarray::{Array, Array1, Array2, ArrayView, Dimension, Ix1, Ix2, Ix3, array};
use safetensors_ndarray::fields::LoadField;
use safetensors_ndarray::{ArrayElement, NamedArrays};

use super::{differences, place};

#[derive(NamedArrays, Debug, PartialEq)]
struct Field<A, D: Dimension = Ix2> {
    values: Array<A, D>,
    #[safetensors(default)]
    errors: Vec<Array<A, D>>,
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Pair<T: Clone, U, const N: usize>
where
    U: PartialEq,
{
    first: T,
    second: Option<U>,
    #[safetensors(skip)]
    marker: PhantomData<[T; N]>,
    #[safetensors(default)]
    rate: T,
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Borrowed<'a, 'b: 'a, A, D: Dimension> {
    x: ArrayView<'a, A, D>,
    y: ArrayView<'b, A, D>,
}

#[test]
fn elements_and_dimensions_can_be_parameters() {
    let (_dir, path) = place();
    let field = Field { values: array![[1.0_f32]], errors: vec![array![[2.0]]] };
    field.save_to(&path).unwrap();
    assert_eq!(Field::<f32>::load_from(&path).unwrap(), field);
    let error = Field::<i64, Ix3>::load_from(&path).unwrap_err();
    assert_eq!(differences(&error).len(), 4, "{error}");

    let (x, y) = (array![1_u8], array![2_u8]);
    let borrowed = Borrowed { x: x.view(), y: y.view() };
    borrowed.save_to(&path).unwrap();
    let reader = safetensors_ndarray::Reader::open_in_memory(&path).unwrap();
    assert_eq!(Borrowed::<u8, Ix1>::view_from(&reader).unwrap(), borrowed);
}

/// Only the documented bounds are needed to save and load any struct.
fn round_trip<T: NamedArrays + for<'r> LoadField<'r>>(value: &T) -> T {
    let (_dir, path) = place();
    value.save_to(&path).unwrap();
    let mut loaded = T::load_from(&path).unwrap();
    loaded.load_into(&path).unwrap();
    loaded
}

fn generic<A: ArrayElement, D: Dimension>(values: Array<A, D>) -> Field<A, D> {
    round_trip(&Field { values, errors: vec![] })
}

#[test]
fn fields_can_have_the_type_of_a_parameter() {
    assert_eq!(generic(array![true, false]).values, array![true, false]);
    let pair = Pair::<f32, Array2<u16>, 3> {
        first: 0.5,
        second: Some(array![[1]]),
        marker: PhantomData,
        rate: 1.5,
    };
    assert_eq!(round_trip(&pair), pair);
    let nested = Pair::<Array1<u8>, Field<f64, Ix1>, 0> {
        first: array![1],
        second: Some(Field { values: array![1.0], errors: vec![] }),
        marker: PhantomData,
        rate: array![],
    };
    assert_eq!(round_trip(&nested), nested);
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Node<A> {
    values: Array1<A>,
    children: Vec<Node<A>>,
    others: Option<Vec<Self>>,
}

#[test]
fn a_generic_struct_can_have_itself_as_items() {
    let node = |value, children, others| Node { values: array![value], children, others };
    let leaf = |value: u16| node(value, vec![], None);
    let tree = node(1, vec![leaf(2), node(3, vec![leaf(4)], Some(vec![]))], Some(vec![leaf(5)]));
    assert_eq!(round_trip(&tree), tree);
}

mod renamed {
    pub(super) use safetensors_ndarray as arrays;
}

#[derive(NamedArrays, Debug, PartialEq)]
#[safetensors(crate = "renamed::arrays")]
struct Elsewhere {
    x: Array1<f32>,
}

/// Names of the user's that the macro's code must not meet.
#[derive(NamedArrays, Debug, PartialEq)]
struct Hygiene {
    name: Array1<f32>,
    file: u8,
    loaded: u8,
    current: Option<u8>,
    names: Vec<String>,
    #[safetensors(rename = "self")]
    this: u8,
}

#[test]
fn the_code_of_the_macro_depends_on_no_names_in_scope() {
    #[allow(dead_code, reason = "these hide the names of the prelude")]
    #[derive(Debug)]
    struct Result;
    #[allow(dead_code, reason = "these hide the names of the prelude")]
    #[derive(Debug)]
    struct Default;
    assert_eq!(round_trip(&Elsewhere { x: array![1.0] }), Elsewhere { x: array![1.0] });
    let value = Hygiene {
        name: array![1.0],
        file: 1,
        loaded: 2,
        current: Some(3),
        names: vec!["x".into()],
        this: 4,
    };
    assert_eq!(round_trip(&value), value);
}
