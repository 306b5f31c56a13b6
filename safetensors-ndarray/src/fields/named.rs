//! [`NamedArrays`]: saves and loads a struct of arrays.

use std::path::Path;

use safetensors_core::{ReadAt, Result};

use super::{Checking, LoadField, Loading, Names, SaveField, Saving};
use crate::{InMemory, Reader, Writer};

/// A struct of arrays, which can be saved to a file and loaded from one. `#[derive(NamedArrays)]`
/// implements this trait; one `use` brings in both.
///
/// ```
/// use ndarray::{Array1, Array2, array};
/// use safetensors_ndarray::NamedArrays;
///
/// #[derive(NamedArrays, Debug, PartialEq)]
/// struct Layer {
///     weight: Array2<f32>,
///     bias: Option<Array1<f32>>,
/// }
///
/// #[derive(NamedArrays, Debug, PartialEq)]
/// struct Model {
///     layers: Vec<Layer>,
///     #[safetensors(rename = "embed_tokens")]
///     embedding: Array2<f32>,
///     epoch: u32,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// let model = Model {
///     layers: vec![Layer { weight: array![[1.0, 2.0]], bias: None }],
///     embedding: array![[0.5]],
///     epoch: 3,
/// };
/// // Writes the tensors `layers.0.weight` and `embed_tokens`, and `epoch` in the metadata.
/// model.save_to(&path)?;
/// assert_eq!(Model::load_from(&path)?, model);
///
/// // An error lists everything that differs.
/// #[derive(NamedArrays, Debug)]
/// struct Other {
///     embed_tokens: Array1<f64>,
///     scale: Array1<f64>,
/// }
/// let error = Other::load_from(&path).unwrap_err();
/// assert!(error.to_string().ends_with(
///     "missing: \"scale\"; not needed: \"layers.0.weight\"; \
///      \"embed_tokens\" should have 1 dimension, found shape [1, 1]; \
///      \"embed_tokens\" should have dtype F64, found F32"
/// ));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The module [`fields`](crate::fields) lists the types of fields, and the macro
/// [`NamedArrays`](macro@crate::NamedArrays) the attributes.
///
/// # Loading is strict
///
/// Before any elements are read, the file is compared with the struct. An
/// [`ErrorKind::Mismatches`](safetensors_core::ErrorKind::Mismatches) lists all differences, at
/// most 100,000. Nothing is converted.
///
/// A `Vec` gets the items from `0` on; a tensor behind a gap belongs to no field. Fields that are
/// an `Option` or have the attribute `default` may be missing. With the attribute `ignore_others`,
/// the file may have other tensors.
///
/// # Borrowed arrays
///
/// A struct of `ArrayView`s saves arrays that are elsewhere. [`view_from`](NamedArrays::view_from)
/// loads it without a copy from a file in memory.
///
/// # Generic structs
///
/// A type parameter may be the element type or the dimension of arrays, or the type of a field:
///
/// ```
/// use ndarray::{Array, Dimension, Ix2, array};
/// use safetensors_ndarray::{ArrayElement, NamedArrays};
///
/// #[derive(NamedArrays)]
/// struct Field<A, D> {
///     values: Array<A, D>,
///     units: String,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("field.safetensors");
/// Field { values: array![[1.0, 2.0]], units: "m/s".into() }.save_to(&path)?;
/// assert_eq!(Field::<f64, Ix2>::load_from(&path)?.units, "m/s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait NamedArrays: SaveField {
    /// Saves the struct to a file, atomically, with arrays in C order. For options, such as
    /// metadata, [write](NamedArrays::write_to) it to a [`Writer`](Writer::create_with).
    ///
    /// # Errors
    ///
    /// Like [`write_to`](NamedArrays::write_to) and [`Writer::finish`]. The path then has its
    /// previous content.
    fn save_to(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let writer = Writer::create(path)?;
        self.write_to(&writer).map_err(|error| error.in_path(path))?;
        writer.finish()
    }

    /// Writes the struct to a file that gets other arrays or attributes too. The attribute
    /// `ignore_others` loads from such a file.
    ///
    /// ```
    /// use ndarray::{Array1, array};
    /// use safetensors_ndarray::{NamedArrays, Reader, Writer};
    ///
    /// #[derive(NamedArrays)]
    /// #[safetensors(ignore_others)]
    /// struct Wind {
    ///     u: Array1<f64>,
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// let w = Writer::create(&path)?;
    /// Wind { u: array![1.0, 2.0] }.write_to(&w)?;
    /// w.add("x", &array![0.0, 0.5])?;
    /// w.attribute("u", "units", "m/s")?;
    /// w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// assert_eq!(r.attribute("u", "units"), Some("m/s"));
    /// assert_eq!(Wind::read_from(&r)?.u, array![1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor) if two fields have the
    /// same name, also in nested structs; [`Framework`](safetensors_core::ErrorKind::Framework) if
    /// fields are nested more than 128 deep; an error of [`Writer::add`]. The writer then has some
    /// of the arrays.
    fn write_to(&self, writer: &Writer) -> Result<()> {
        self.save_field("", &mut Saving::new(writer))
    }

    /// Loads the struct from a file, an index of several files, or the directory of either. All
    /// arrays are read in parallel.
    fn load_from(path: impl AsRef<Path>) -> Result<Self>
    where
        Self: for<'r> LoadField<'r>,
    {
        Self::read_from(&Reader::open(path)?)
    }

    /// Loads like [`load_from`](NamedArrays::load_from), from a file that is open, or in memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`](safetensors_core::ErrorKind::Mismatches), which lists everything
    /// that differs; [`ErrorKind::DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor)
    /// if two fields have the same name, also in nested structs; an error of
    /// [`Checkpoint::read_named`](safetensors_core::Checkpoint::read_named).
    fn read_from<S: ReadAt>(reader: &Reader<S>) -> Result<Self>
    where
        Self: for<'r> LoadField<'r>,
    {
        read(None, reader)
    }

    /// Loads new values into this struct. The arrays must have their present shapes, and `Vec`s the
    /// same number of items. An `Option` follows the file. Skipped fields stay unchanged.
    ///
    /// After an error the struct is unchanged. Until all is read, memory holds the old and the new
    /// arrays.
    ///
    /// ```
    /// use ndarray::{Array1, array};
    /// use safetensors_ndarray::NamedArrays;
    ///
    /// #[derive(NamedArrays)]
    /// struct State {
    ///     u: Array1<f64>,
    ///     #[safetensors(skip)]
    ///     verbose: bool,
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("state.safetensors");
    /// State { u: array![1.0, 2.0], verbose: false }.save_to(&path)?;
    /// let mut state = State { u: Array1::zeros(2), verbose: true };
    /// state.load_into(&path)?;
    /// assert_eq!((state.u, state.verbose), (array![1.0, 2.0], true));
    ///
    /// let error = State { u: Array1::zeros(3), verbose: true }.load_into(&path).unwrap_err();
    /// assert!(error.to_string().ends_with(r#""u" should have shape [3], found [2]"#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn load_into(&mut self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: for<'r> LoadField<'r>,
    {
        self.read_into(&Reader::open(path)?)
    }

    /// Loads like [`load_into`](NamedArrays::load_into), from a file that is open, or in memory.
    fn read_into<S: ReadAt>(&mut self, reader: &Reader<S>) -> Result<()>
    where
        Self: for<'r> LoadField<'r>,
    {
        let mut loaded = read(Some(&*self), reader)?;
        self.exchange(&mut loaded);
        Ok(())
    }

    /// Loads a struct that borrows its arrays and texts from a file in memory. `Array` fields are
    /// copied, and so are `CowArray`s that are not aligned in the file.
    ///
    /// ```
    /// use ndarray::{Array2, ArrayView2, array};
    /// use safetensors_ndarray::{NamedArrays, Reader};
    ///
    /// #[derive(NamedArrays)]
    /// struct Wind<'a> {
    ///     u: ArrayView2<'a, f64>,
    ///     title: &'a str,
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// let u: Array2<f64> = array![[1.0, 2.0], [3.0, 4.0]];
    /// Wind { u: u.t(), title: "wind" }.save_to(&path)?;
    ///
    /// let r = Reader::open_in_memory(&path)?;
    /// let wind = Wind::view_from(&r)?;
    /// assert_eq!((wind.u, wind.title), (u.t(), "wind"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`read_from`](NamedArrays::read_from) and [`Reader::view`]: for example
    /// [`Misaligned`](safetensors_core::ErrorKind::Misaligned).
    fn view_from<'r, B: InMemory>(reader: &'r Reader<B>) -> Result<Self>
    where
        Self: LoadField<'r>,
    {
        let mut file = Checking::new(Names::new(reader));
        Self::check(None, "", &mut file);
        let (names, _) = file.finish()?;
        Self::load("", &mut Loading::in_memory(reader, names))
    }
}

/// Reads a value, which is to replace `current` if there is one.
fn read<'r, F: LoadField<'r>, S: ReadAt>(current: Option<&F>, reader: &'r Reader<S>) -> Result<F> {
    let mut file = Checking::new(Names::new(reader));
    F::check(current, "", &mut file);
    let (names, arrays) = file.finish()?;
    F::load("", &mut Loading::read(reader, names, arrays)?)
}
