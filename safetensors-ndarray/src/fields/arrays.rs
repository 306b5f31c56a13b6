//! Fields that are arrays: tensors in the file.

use ndarray::{ArcArray, Array, ArrayBase, ArrayView, CowArray, Data, Dimension, RawData};
use safetensors_core::{ErrorKind, Result};

use super::{Checking, InOption, InVec, LoadField, Loading, Names, SaveField, Saving};
use crate::ArrayElement;

impl<S: Data<Elem: ArrayElement>, D: Dimension> SaveField for ArrayBase<S, D> {
    fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()> {
        file.array(name, self)
    }
}

impl<S: RawData, D> InVec for ArrayBase<S, D> {}

impl<S: RawData, D> InOption for ArrayBase<S, D> {}

macro_rules! load_arrays {
    ($([$($lifetimes:tt)*] $array:ty, $load:expr;)*) => {$(
        impl<$($lifetimes)*, A: ArrayElement, D: Dimension> LoadField<'r> for $array {
            fn is_in(name: &str, names: &Names<'r>) -> bool {
                names.has_array(name)
            }

            fn check(current: Option<&Self>, name: &str, file: &mut Checking<'r>) {
                file.array::<A, D>(name, current.map(|array| array.shape()));
            }

            fn load(name: &str, file: &mut Loading<'r>) -> Result<Self> {
                $load(file, name)
            }
        }
    )*};
}

load_arrays! {
    ['r] Array<A, D>, Loading::array;
    ['r] ArcArray<A, D>, |file: &mut Loading<'r>, name| file.array(name).map(Array::into_shared);
    ['r: 'a, 'a] ArrayView<'a, A, D>, |file: &mut Loading<'r>, name| file.view(name);
    ['r: 'a, 'a] CowArray<'a, A, D>, borrow_or_copy;
}

/// Copies an array if its elements cannot be borrowed in place.
fn borrow_or_copy<'r, A: ArrayElement, D: Dimension>(
    file: &mut Loading<'r>,
    name: &str,
) -> Result<CowArray<'r, A, D>> {
    let error = match file.view(name) {
        Ok(view) => return Ok(view.into()),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::Misaligned { .. } | ErrorKind::BigEndian { .. } => {
            file.array(name).map(Array::into)
        }
        _ => Err(error),
    }
}
