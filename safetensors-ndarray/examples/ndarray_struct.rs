//! The state of a simulation is a struct of arrays. It is saved, loaded into a new run, and
//! borrowed from a file in memory. A file of another grid is refused, with everything that differs.
//!
//! ```text
//! cargo run --release -p safetensors-ndarray --features derive --example ndarray_struct
//! ```

use std::error::Error;

use ndarray::{Array1, Array2, ArrayView2, Axis};
use safetensors_ndarray::{NamedArrays, Reader, Writer};

/// A field on the grid, with its unit.
#[derive(NamedArrays)]
struct Field {
    values: Array2<f64>,
    units: String,
}

/// A station that records one point of the grid.
#[derive(NamedArrays)]
struct Station {
    position: Array1<u32>,
    record: Array1<f64>,
    /// Not every station has one.
    calibration: Option<Array2<f32>>,
}

/// All that a run needs to go on.
#[derive(NamedArrays)]
struct State {
    time: f64,
    step: u64,
    temperature: Field,
    stations: Vec<Station>,
    #[safetensors(rename = "grid.x")]
    x: Array1<f32>,
    /// Belongs to the run and not to its state.
    #[safetensors(skip)]
    verbose: bool,
    /// Files of earlier versions do not have it.
    #[safetensors(default)]
    comment: String,
}

/// A part of the same file, borrowed.
#[derive(NamedArrays)]
struct Picture<'a> {
    temperature: ArrayView2<'a, f64>,
    title: &'a str,
}

impl State {
    fn new(rows: usize, columns: usize) -> Self {
        let station = |row: u32, calibration| Station {
            position: Array1::from(vec![row, 2]),
            record: Array1::zeros(3),
            calibration,
        };
        Self {
            time: 0.0,
            step: 0,
            temperature: Field {
                values: Array2::from_shape_fn((rows, columns), |(y, x)| (y * x) as f64),
                units: "K".into(),
            },
            stations: vec![station(0, None), station(1, Some(Array2::eye(2)))],
            x: Array1::linspace(0.0, 1.0, columns),
            verbose: false,
            comment: "first run".into(),
        }
    }

    fn advance(&mut self) {
        self.step += 1;
        self.time += 0.1;
        self.temperature.values += 1.0;
        for station in &mut self.stations {
            let at = (station.position[0] as usize, station.position[1] as usize);
            station.record[(self.step as usize - 1) % 3] = self.temperature.values[at];
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("state.safetensors");

    let mut state = State::new(4, 6);
    (0..3).for_each(|_| state.advance());
    state.save_to(&path)?;

    let reader = Reader::open(&path)?;
    println!("tensors:");
    for array in reader.arrays() {
        println!("  {:<28}{:<6}{:?}", array.name(), array.dtype(), array.shape());
    }
    println!("metadata:");
    for (key, value) in reader.metadata() {
        println!("  {key:<28}{value}");
    }

    // A new run goes on where the old one stopped. Skipped fields stay unchanged.
    let mut resumed = State { verbose: true, ..State::new(4, 6) };
    resumed.load_into(&path)?;
    assert_eq!(resumed.time.to_bits(), state.time.to_bits());
    assert_eq!(resumed.temperature.values, state.temperature.values);
    assert_eq!(resumed.stations[1].record, state.stations[1].record);
    assert!(resumed.verbose && resumed.step == 3);
    println!("resumed at step {}, {:.1} s", resumed.step, resumed.time);

    // Another grid: nothing is loaded, and the error says everything that differs.
    let mut other = State::new(5, 6);
    other.stations.push(Station {
        position: Array1::zeros(2),
        record: Array1::zeros(3),
        calibration: None,
    });
    let error = other.load_into(&path).expect_err("the grid is another one");
    println!("refused: {error}");
    assert_eq!(other.step, 0);

    // A struct of views saves arrays that are elsewhere, here without a margin and transposed.
    let picture = directory.path().join("picture.safetensors");
    let values = state.temperature.values.slice(ndarray::s![1..3, ..]);
    let writer = Writer::create(&picture)?;
    Picture { temperature: values.reversed_axes(), title: "Temperature" }.write_to(&writer)?;
    writer.attribute("temperature", "units", state.temperature.units.as_str())?;
    writer.finish()?;

    // It borrows arrays from a file in memory, too.
    let reader = Reader::open_in_memory(&picture)?;
    let picture = Picture::view_from(&reader)?;
    let (title, units) = (picture.title, reader.attribute("temperature", "units").unwrap_or("?"));
    println!("{title} in {units}: mean of each column");
    println!("  {:?}", picture.temperature.mean_axis(Axis(1)).expect("columns are not empty"));
    Ok(())
}
