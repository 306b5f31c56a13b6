//! Computing with ndarray: save labelled arrays that grow, resume in a later run, read slices.
//!
//! ```toml
//! [dependencies]
//! safetensors-bridge = "0.1"
//! ndarray = "0.17"
//! ```
//!
//! # Writing steps as they come
//!
//! A [`Writer`](crate::ndarray::Writer) takes arrays of any element type and memory layout. An
//! array that grows takes steps one by one, and memory holds at most 256 KiB of it. Names of
//! dimensions and units are metadata.
//!
//! ```
//! use std::path::Path;
//!
//! use ndarray::{Array1, Array2, Axis, Ix1, Ix3, s};
//! use safetensors_bridge::ndarray::{Reader, Writer};
//!
//! type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//!
//! /// A hot spot on a plate of 20 × 30 points, and how it spreads.
//! fn next(state: &Array2<f64>) -> Array2<f64> {
//!     let mut next = state.clone();
//!     let (up, down) = (state.slice(s![..18, 1..29]), state.slice(s![2.., 1..29]));
//!     let (left, right) = (state.slice(s![1..19, ..28]), state.slice(s![1..19, 2..]));
//!     let spread = &up + &down + left + right - &state.slice(s![1..19, 1..29]) * 4.0;
//!     next.slice_mut(s![1..19, 1..29]).scaled_add(0.2, &spread);
//!     next
//! }
//!
//! /// Continues an earlier run, until the file has this many steps.
//! fn simulate(path: &Path, steps: u64) -> Result<()> {
//!     let w = Writer::resume(path)?.sync_every(50);
//!     let time = w.grow("time", Axis(0), &[])?; // single numbers
//!     let heat = w.grow("heat", Axis(0), &[20, 30])?; // one state a step
//!     let mut state = Array2::from_elem((20, 30), 280.0);
//!     if time.steps() == 0 {
//!         w.metadata([("title", "a hot spot spreads")]);
//!         w.add("y", &Array1::linspace(0.0, 1.9, 20))?;
//!         w.add("x", &Array1::from_iter(0..30_i64))?;
//!         w.dimensions("heat", &["time", "y", "x"])?;
//!         w.attribute("heat", "units", "K")?;
//!         w.attribute("time", "units", "s")?;
//!         state[[10, 15]] = 400.0;
//!     } else {
//!         // The path has all steps of the earlier run, even if it was killed.
//!         let last = Reader::open(path)?.slice::<f64, _>("heat", s![-1, .., ..])?;
//!         state = next(&last.into_dimensionality()?);
//!     }
//!     while time.steps() < steps {
//!         time.push(0.5 * time.steps() as f64)?;
//!         heat.append(&state)?;
//!         state = next(&state);
//!     }
//!     w.finish()?; // only now the path has the new steps
//!     Ok(())
//! }
//!
//! fn main() -> Result<()> {
//!     let dir = tempfile::tempdir()?;
//!     let path = dir.path().join("heat.safetensors");
//!     simulate(&path, 100)?;
//!     simulate(&path, 120)?; // a later run
//!
//!     let r = Reader::open(&path)?;
//!     for array in r.arrays() {
//!         let units = r.attribute(array.name(), "units").unwrap_or("1");
//!         println!("{} {} {:?} in {units}", array.name(), array.dtype(), array.shape());
//!     }
//!     assert_eq!(r.read::<f64, Ix1>("time")?.len(), 120);
//!     // By positions: one point over all steps. Only its bytes are read.
//!     let point = r.slice::<f64, _>("heat", s![.., 10, 15])?;
//!     assert_eq!(point.len(), 120);
//!     assert_eq!(point.first(), Some(&400.0));
//!     // By labels: half a minute, and a part of the plate.
//!     let part = r.select("time", 0.0..30.0)?.select("x", 10..=20)?;
//!     assert_eq!(part.read::<f64, Ix3>("heat")?.shape(), [60, 20, 11]);
//!     assert_eq!(part.read::<i64, Ix1>("x")?.first(), Some(&10)); // the labels of an axis
//!     Ok(())
//! }
//! ```
//!
//! | to | use |
//! |---|---|
//! | write an array that is complete | `w.add("u", &u)?`, of any layout: views, `u.t()`, `u.slice(s![..;2])` |
//! | append one number, one step, several steps | `push`, `append`, `extend` of the result of [`grow`](crate::ndarray::Writer::grow) |
//! | read all, as another type, or into an existing array | [`read`](crate::ndarray::Reader::read), `read_as`, `read_into` |
//! | read a part by positions | [`slice`](crate::ndarray::Reader::slice), with steps and reversed axes as in `s![]` |
//! | read a part by labels | [`select`](crate::ndarray::Reader::select): numbers of an array with one axis and the dimension's name |
//! | read rows by their numbers | `r.rows::<f32, Ix2>("table", &[7, 3, 7])?` |
//! | keep the state and the parameters of a program | [a struct](#the-state-of-a-program) |
//! | keep one parameter next to the arrays | `w.metadata([("dt", dt)])`; read by `r.metadata()["dt"].parse()` |
//! | give an array units, or a number | `w.attribute("u", "scale_factor", 0.01)`; read by `r.attribute` |
//! | keep a writer and its arrays in a struct | [`ArrayAppender`](crate::ndarray::ArrayAppender) borrows nothing |
//! | store `Complex<f64>` | as two numbers, see [`ArrayElement`](crate::ndarray::ArrayElement) |
//! | convert `.npz` archives | `npz::to_safetensors(archive, file)` of the module `ndarray::npz`, feature `npz`; `to_safetensors_skipping` skips texts and dates |
//!
//! # The state of a program
//!
//! With the feature `derive`, a struct is a file. Its arrays are tensors, and its numbers, booleans
//! and texts are entries in the metadata. The file must have each field, and no other array, unless
//! the struct has the attribute `ignore_others`. [`ndarray::fields`](crate::ndarray::fields) lists
//! the types of fields.
//!
#![cfg_attr(feature = "derive", doc = "```")]
#![cfg_attr(not(feature = "derive"), doc = "```ignore")]
//! use ndarray::{Array1, Array2};
//! use safetensors_bridge::ndarray::{NamedArrays, Reader};
//!
//! /// The parameters of a run, and how far it is.
//! #[derive(NamedArrays, Debug, PartialEq)]
//! struct Plate {
//!     dt: f64,
//!     steps: i64,
//!     scheme: String,
//!     is_periodic: bool,
//!     #[safetensors(units = "m")]
//!     x: Array1<f64>,
//!     #[safetensors(dimensions("y", "x"), units = "K")]
//!     heat: Array2<f64>,
//!     /// A file of an earlier version of the program does not have it.
//!     #[safetensors(default)]
//!     seed: u64,
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("plate.safetensors");
//! let plate = Plate {
//!     dt: 0.1,
//!     steps: 100,
//!     scheme: "explicit".into(),
//!     is_periodic: false,
//!     x: Array1::linspace(0.0, 2.9, 30),
//!     heat: Array2::from_elem((20, 30), 280.0),
//!     seed: 7,
//! };
//! plate.save_to(&path)?;
//! assert_eq!(Plate::load_from(&path)?, plate);
//! assert_eq!(Reader::open(&path)?.metadata()["dt"], "0.1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When a run is killed
//!
//! Until `finish` the path has the earlier file, or none. `sync_every(50)` and
//! [`sync`](crate::ndarray::Writer::sync) also write the steps so far to separate files,
//! `heat.safetensors.synced/00000001.safetensors` and so on, which every reader opens. A program
//! that begins with [`resume`](crate::ndarray::Writer::resume) goes on with them:
//!
//! ```
//! use ndarray::{Axis, Ix1};
//! use safetensors_bridge::Error;
//! use safetensors_bridge::ndarray::{Reader, Writer};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("run.safetensors");
//! let run = |until: u64| {
//!     let w = Writer::resume(&path)?.sync_every(50);
//!     let (energy, mean) = (w.grow("energy", Axis(0), &[])?, w.grow("mean", Axis(0), &[])?);
//!     for step in energy.steps()..until {
//!         energy.push(step as f64)?;
//!         if step % 10 == 9 {
//!             mean.push(step as f64 - 4.5)?;
//!         }
//!     }
//!     Ok::<_, Error>(w)
//! };
//! drop(run(120)?); // killed here
//! assert!(!path.exists());
//!
//! // The next day. The file has 100 steps, and the run adds the others.
//! run(200)?.finish()?;
//! let r = Reader::open(&path)?;
//! assert_eq!(r.read::<f64, Ix1>("energy")?.len(), 200);
//! assert_eq!(r.read::<f64, Ix1>("mean")?.len(), 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`sync_every`](crate::ndarray::Writer::sync_every) never divides a pass of such a loop. To read
//! the steps of a killed run, call `Writer::resume(&path)?`, then read the file. To begin again
//! without them, remove the directory.
//!
//! `finish` writes the complete file again, old steps included, and the disk needs space for both.
//! If the disk is full, nothing is lost: make space and call it again. A second writer of a path is
//! an error at once.
//!
//! # What goes wrong
//!
//! A step that is refused leaves the array unchanged.
//!
//! ```
//! use ndarray::{Array2, Axis, Ix1, Ix2};
//! use safetensors_bridge::ndarray::{Reader, Writer};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("run.safetensors");
//! let w = Writer::create(&path)?;
//! let heat = w.grow::<f64>("heat", Axis(0), &[20, 30])?;
//! let says = |error: safetensors_bridge::Error, text: &str| {
//!     assert!(error.to_string().contains(text), "{error}");
//! };
//! // A step of another shape.
//! let step = Array2::zeros((30, 20));
//! says(heat.append(&step).unwrap_err(), "expected shape [20, 30], found [30, 20]");
//! // A duplicate name, and dimensions that do not fit.
//! says(w.add("heat", &step).unwrap_err(), r#"tensor "heat": duplicate tensor name"#);
//! says(w.dimensions("heat", &["time", "x"]).unwrap_err(), "3 different names");
//! heat.append(&Array2::zeros((20, 30)))?;
//! w.finish()?;
//!
//! let r = Reader::open(&path)?;
//! // Another element type is an error, unless it is asked for; so is another number of axes.
//! says(r.read::<f32, Ix1>("heat").unwrap_err(), "expected dtype F32, found F64");
//! assert_eq!(r.read_as::<f32, ndarray::Ix3>("heat")?.dim(), (1, 20, 30));
//! says(r.read::<f64, Ix2>("heat").unwrap_err(), "expected 2 dimensions, found 3");
//! // A name that is not there.
//! says(r.read::<f64, Ix1>("heats").unwrap_err(), r#"did you mean "heat"?"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Other readers
//!
//! Python reads the file with `safetensors.numpy.load_file`, or one array with `safe_open`. For
//! bfloat16, NumPy needs `import ml_dtypes`: otherwise `load_file` fails with "data type 'bfloat16'
//! not understood".
//!
//! The page on [labelled
//! arrays](https://docs.rs/crate/safetensors-bridge/latest/source/docs/labels.md) has the names of
//! the entries, and a function that makes an `xarray.DataArray`. `safetensors manifest
//! heat.safetensors -o heat.json` describes the file for Zarr. xarray then reads it lazily, with
//! `zarr` and `fsspec`, and bfloat16 as uint16:
//!
//! ```python
//! storage = {"fo": "heat.json", "remote_protocol": "file"}
//! backend = {"consolidated": False, "storage_options": storage}
//! heat = xarray.open_dataset("reference://", engine="zarr", backend_kwargs=backend)
//! ```
//!
//! The command shows the content of a file: see [`operator`](super::operator).
//!
//! # Many files
//!
//! A directory of files is a data set of samples. [`Samples`](crate::framework::Samples) reads them
//! ahead, in the order of a seed, and stacks them into batches. Samples of unlike shapes are an
//! error that names the file. [`only`](crate::framework::Samples::only) reads some arrays of each
//! sample, and [`metadata`](crate::framework::Samples::metadata) none.
//!
//! A writer waits about 8 ms until its file is on the disk. With `durable(false)` it does not: 500
//! samples of 132 KiB took 0.5 s instead of 4.2 s, but a power cut may damage the last files.
//!
//! ```
//! use ndarray::{Array2, Ix3, arr0};
//! use safetensors_bridge::framework::Samples;
//! use safetensors_bridge::ndarray::{Ndarray, Writer};
//! use safetensors_bridge::{Error, SaveOptions};
//!
//! # let dir = tempfile::tempdir()?;
//! let options = SaveOptions::new().durable(false);
//! for i in 0..10 {
//!     let w = Writer::create_with(dir.path().join(format!("{i:04}.safetensors")), &options)?;
//!     w.add("image", &Array2::from_elem((4, 4), i as f32))?;
//!     w.add("label", &arr0(i64::from(i % 2)))?;
//!     w.finish()?;
//! }
//! let samples = Samples::<Ndarray>::open(dir.path(), ())?.only(["image"]);
//! let mut sum = 0.0;
//! samples.for_each_batch(samples.shuffled(7), 4, |batch| {
//!     let images = batch.tensors["image"].as_array::<f32, Ix3>()?;
//!     sum += images.sum();
//!     Ok::<(), Error>(())
//! })?;
//! assert_eq!(sum, 16.0 * 45.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
