//! Writing from the threads of rayon, which may all be busy with it.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ndarray::{Array2, Ix2, ShapeBuilder};
use rayon::prelude::*;
use safetensors_ndarray::{Reader, Writer};

use crate::common::place;

/// An array of 9 MB in Fortran order, which is gathered by several threads.
fn array(seed: usize) -> Array2<f32> {
    Array2::from_shape_fn((1500, 1500).f(), |(i, j)| (i * 1500 + j + seed) as f32)
}

/// Runs `work` in another thread, and fails if that takes a minute.
fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    // Fails if the other test was faster.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(2).build_global();
    let (done, is_done) = channel();
    thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn arrays_added_by_all_threads_of_rayon_at_once_are_written() {
    within_a_minute(|| {
        let (_dir, path) = place("arrays.safetensors");
        let writer = Writer::create(&path).unwrap();
        (0..8_usize).into_par_iter().for_each(|seed| {
            writer.add(&seed.to_string(), &array(seed)).unwrap();
        });
        writer.finish().unwrap();
        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.checkpoint().len(), 8);
        assert_eq!(reader.read::<f32, Ix2>("7").unwrap(), array(7));
    });
}

#[test]
fn steps_appended_by_all_threads_of_rayon_at_once_are_written() {
    within_a_minute(|| {
        let (_dir, path) = place("steps.safetensors");
        let writer = Writer::create(&path).unwrap();
        let steps = writer.grow("steps", ndarray::Axis(0), &[1500, 1500]).unwrap();
        // Each step holds the lock of the array while it is gathered.
        (0..6_usize).into_par_iter().for_each(|seed| steps.append(&array(seed)).unwrap());
        writer.finish().unwrap();
        let reader = Reader::open(&path).unwrap();
        let mut firsts: Vec<f32> = (0..6_usize)
            .map(|step| {
                let step = reader.slice::<f32, _>("steps", ndarray::s![step, .., ..]).unwrap();
                assert_eq!(step[[3, 5]] - step[[0, 0]], 4505.0);
                step[[0, 0]]
            })
            .collect();
        firsts.sort_by(f32::total_cmp);
        assert!(firsts.into_iter().eq((0..6_u8).map(f32::from)));
    });
}
