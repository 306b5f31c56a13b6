//! The traits of the types that a field can have, for the derive macro.

use safetensors_core::Result;
use safetensors_core::error::Mismatch;

use super::{Checking, Loading, Names, Saving};

/// A type of a field in a struct that is saved. The [module](crate::fields) lists them.
#[diagnostic::on_unimplemented(
    message = "a field of type `{Self}` cannot be saved to a safetensors file",
    label = "not an array, a number, a text, a struct that derives `NamedArrays`, or a `Vec` or \
             `Option` of those",
    note = "`#[safetensors(skip)]` leaves the field out"
)]
pub trait SaveField {
    /// Writes the field under this name, or below it.
    #[doc(hidden)]
    fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()>;
}

/// A type of a field in a struct that is loaded from a file of lifetime `'r`, for borrowed parts.
/// The [module](crate::fields) lists them.
#[diagnostic::on_unimplemented(
    message = "a field of type `{Self}` cannot be loaded from a safetensors file",
    label = "not an array, a number, a text, a struct that derives `NamedArrays`, or a `Vec` or \
             `Option` of those"
)]
pub trait LoadField<'r>: Sized {
    /// Returns `true` if the file has the field.
    #[doc(hidden)]
    fn is_in(name: &str, names: &Names<'r>) -> bool;

    /// Compares the file with the field, and with the present value. No elements are read.
    #[doc(hidden)]
    fn check(current: Option<&Self>, name: &str, file: &mut Checking<'r>);

    /// Makes the value, after `check`.
    #[doc(hidden)]
    fn load(name: &str, file: &mut Loading<'r>) -> Result<Self>;

    /// Exchanges the two values, except for fields that are skipped.
    #[doc(hidden)]
    fn exchange(&mut self, loaded: &mut Self) {
        std::mem::swap(self, loaded);
    }
}

/// A type in a `Vec` in a struct of arrays: structs that derive `NamedArrays`, arrays, texts, and
/// `Vec`s of them.
///
/// A `Vec` of numbers would become a metadata entry for each: use an `Array1<f64>`.
#[diagnostic::on_unimplemented(
    message = "a `Vec` of `{Self}` cannot be a field of a struct of arrays",
    label = "not a struct that derives `NamedArrays`, an array or a text",
    note = "use an `Array1` for numbers"
)]
#[doc(hidden)]
pub trait InVec {}

/// A type in an `Option` in a struct of arrays: every type except an `Option`.
#[diagnostic::on_unimplemented(
    message = "an `Option` of `{Self}` cannot be a field of a struct of arrays",
    label = "not an array, a number, a text, a struct that derives `NamedArrays`, or a `Vec`"
)]
#[doc(hidden)]
pub trait InOption {}

impl<'r> Checking<'r> {
    /// Compares a field, if the file has it.
    #[doc(hidden)]
    pub fn check_or_default<F: LoadField<'r>>(&mut self, current: Option<&F>, name: &str) {
        if F::is_in(name, self.names()) {
            F::check(current, name, self);
        }
    }

    /// Compares an item that the file lacks, so that at least one difference is listed.
    pub(super) fn missing_item<F: LoadField<'r>>(&mut self, current: &F, name: &str) {
        let before = self.mismatches.len();
        F::check(Some(current), name, self);
        if self.mismatches.len() == before {
            self.note(Mismatch::Missing { name: name.into() });
        }
    }
}

impl<'r> Loading<'r> {
    /// Makes a field, with its default value if the file lacks it.
    #[doc(hidden)]
    pub fn load_or_default<F: LoadField<'r> + Default>(&mut self, name: &str) -> Result<F> {
        if F::is_in(name, self.names()) { F::load(name, self) } else { Ok(F::default()) }
    }
}
