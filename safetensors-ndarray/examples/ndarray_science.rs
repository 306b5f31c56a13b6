//! A small simulation writes its state step by step, with units. Then one point and one line are
//! read over all steps, and a picture is drawn. The program does the same with `.npz`, for
//! comparison.
//!
//! ```text
//! cargo run --release -p safetensors-ndarray --example ndarray_science -- [DIRECTORY]
//! ```
//!
//! Without a directory the files go to a temporary one, and are removed at the end.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use ndarray::{Array1, Array2, Array3, Axis, Ix1, Ix3, s};
use ndarray_npy::{NpzReader, NpzWriter};
use plotters::prelude::*;
use safetensors_ndarray::{Reader, Writer};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The grid: rows and columns.
const GRID: (usize, usize) = (120, 160);

/// The number of steps. The writer does not need to know it.
const STEPS: usize = 200;

/// The length of a step in seconds.
const DT: f64 = 0.1;

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = match std::env::args_os().nth(1) {
        Some(directory) => directory.into(),
        None => temporary.path().to_owned(),
    };
    fs::create_dir_all(&directory)?;
    let (file, npz) = (directory.join("heat.safetensors"), directory.join("heat.npz"));
    let picture = directory.join("heat.svg");

    println!("{STEPS} steps of {} x {} numbers (f64)", GRID.0, GRID.1);
    println!("{:<44}{:>12}{:>12}", "", "safetensors", "npz");
    let ours = timed(|| write_steps(&file))?;
    let theirs = timed(|| write_npz(&npz))?;
    row("simulate and write all steps", &ours, &theirs);

    let point = (GRID.0 / 2, GRID.1 / 3);
    let ours = timed(|| Ok(Reader::open(&file)?.slice::<f64, _>("t", s![.., point.0, point.1])?))?;
    let theirs = timed(|| Ok(read_npz(&npz)?.slice(s![.., point.0, point.1]).to_owned()))?;
    assert_eq!(ours.1, theirs.1);
    row("read one point over all steps", &ours, &theirs);

    let ours = timed(|| Ok(Reader::open(&file)?.slice::<f64, _>("t", s![..;-10, point.0, ..])?))?;
    let theirs = timed(|| Ok(read_npz(&npz)?.slice(s![..;-10, point.0, ..]).to_owned()))?;
    assert_eq!(ours.1, theirs.1);
    row("read one line of every tenth step, backwards", &ours, &theirs);

    let ours = timed(|| Ok(Reader::open(&file)?.read::<f64, Ix3>("t")?))?;
    let theirs = timed(|| read_npz(&npz))?;
    assert_eq!(ours.1, theirs.1);
    row("read everything", &ours, &theirs);

    let reader = Reader::open(&file)?;
    for array in reader.arrays() {
        let units = reader.attribute(array.name(), "units").unwrap_or("no units");
        println!("{}: {} {:?}, {units}", array.name(), array.dtype(), array.shape());
    }
    draw(&reader, point, &picture)?;
    println!("{}: {} bytes", picture.display(), fs::metadata(&picture)?.len());
    Ok(())
}

/// Writes each step when it is computed. Only one step is in memory. A run that is killed leaves
/// the steps up to the last multiple of 50, and [`Writer::resume`] would go on with them.
fn write_steps(path: &Path) -> Result<()> {
    let w = Writer::create(path)?.sync_every(50);
    w.metadata([("title", "a hot spot that drifts and spreads")]);
    let (time, t) = (w.grow("time", Axis(0), &[])?, w.grow("t", Axis(0), &[GRID.0, GRID.1])?);
    w.attribute("time", "units", "s")?;
    w.attribute("t", "units", "K")?;
    w.attribute("t", "long_name", "temperature")?;
    let mut state = start();
    for step in 0..STEPS {
        time.push(DT * step as f64)?;
        t.append(&state)?;
        state = next(&state);
    }
    w.add("last_mean", &state.mean_axis(Axis(0)).unwrap_or_default())?;
    w.attribute("last_mean", "units", "K")?;
    w.finish()?;
    Ok(())
}

/// An array of an archive is written whole, so all steps are held in memory.
fn write_npz(path: &Path) -> Result<()> {
    let mut state = start();
    let mut steps = Array3::zeros((STEPS, GRID.0, GRID.1));
    for mut step in steps.outer_iter_mut() {
        step.assign(&state);
        state = next(&state);
    }
    let mut npz = NpzWriter::new(File::create(path)?);
    npz.add_array("time", &Array1::from_iter((0..STEPS).map(|step| DT * step as f64)))?;
    npz.add_array("t", &steps)?;
    npz.finish()?;
    Ok(())
}

/// A part of an array is read by reading all of it.
fn read_npz(path: &Path) -> Result<Array3<f64>> {
    Ok(NpzReader::new(File::open(path)?)?.by_name("t")?)
}

/// A hot spot.
fn start() -> Array2<f64> {
    let hot = |row: usize, column: usize| {
        let (y, x) = (row as f64 - GRID.0 as f64 / 2.0, column as f64 - GRID.1 as f64 / 4.0);
        280.0 + 60.0 * (-(x * x + y * y) / 60.0).exp()
    };
    Array2::from_shape_fn(GRID, |(row, column)| hot(row, column))
}

/// Diffusion, and wind from the left. The borders keep their temperature.
#[allow(clippy::reversed_empty_ranges, reason = "in `s![]`, -1 is the last position")]
fn next(state: &Array2<f64>) -> Array2<f64> {
    let mut next = state.clone();
    let inner = state.slice(s![1..-1, 1..-1]);
    let (up, down) = (state.slice(s![..-2, 1..-1]), state.slice(s![2.., 1..-1]));
    let (left, right) = (state.slice(s![1..-1, ..-2]), state.slice(s![1..-1, 2..]));
    let spread = &up + &down + left + right - &inner * 4.0;
    let drift = &left - &inner;
    next.slice_mut(s![1..-1, 1..-1]).assign(&(&inner + &(spread * 0.2) + &(drift * 0.15)));
    next
}

/// Draws the last step as a map, and below it the temperature at one point over time.
fn draw(reader: &Reader, point: (usize, usize), path: &Path) -> Result<()> {
    let map = reader.slice::<f64, _>("t", s![-1, .., ..])?;
    let time = reader.read::<f64, Ix1>("time")?;
    let line = reader.slice::<f64, _>("t", s![.., point.0, point.1])?;
    let (low, high) = (280.0, map.fold(281.0_f64, |high, &t| high.max(t)));

    let (rows, columns) = GRID;
    let canvas = SVGBackend::new(path, (4 * columns as u32, 4 * rows as u32 + 160));
    let canvas = canvas.into_drawing_area();
    canvas.fill(&WHITE)?;
    let (upper, lower) = canvas.split_vertically(4 * rows as u32);
    let mut chart = ChartBuilder::on(&upper).build_cartesian_2d(0..columns, 0..rows)?;
    chart.draw_series(map.indexed_iter().map(|((row, column), &t)| {
        let heat = ((t - low) / (high - low)).clamp(0.0, 1.0);
        let color = HSLColor(0.66 * (1.0 - heat), 0.8, 0.5);
        Rectangle::new([(column, row), (column + 1, row + 1)], color.filled())
    }))?;
    let hottest = line.fold(281.0_f64, |high, &t| high.max(t));
    let end = DT * STEPS as f64;
    let mut chart =
        ChartBuilder::on(&lower).margin(10).build_cartesian_2d(0.0..end, low..hottest + 1.0)?;
    chart.draw_series(LineSeries::new(time.iter().copied().zip(line), &RED))?;
    canvas.present()?;
    Ok(())
}

/// Returns the seconds that `f` takes, and its result.
fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let value = f()?;
    Ok((start.elapsed().as_secs_f64(), value))
}

fn row<T>(what: &str, (ours, _): &(f64, T), (theirs, _): &(f64, T)) {
    println!("{what:<44}{:>9.2} ms{:>9.2} ms", ours * 1e3, theirs * 1e3);
}
