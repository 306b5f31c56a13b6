//! Saves of many small tensors, which are written together.

use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use safetensors_core::digest::{self, DigestOptions};
use safetensors_testing::tensors::bytes_by;

use crate::support::*;

/// Lengths on both sides of the limits: 64 KiB for a tensor, 1 MiB for a run of them.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        8 => 1..2000_usize,
        8 => (64 << 10) - 2..(64 << 10) + 2_usize,
        1 => Just((1 << 20) + 1),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_file_has_the_same_bytes_as_one_in_memory(
        lens in prop::collection::vec(len(), 0..60), digests: bool,
    ) {
        let data = repeated((1 << 20) + 8, 251, |i| (i % 251) as u8);
        let shapes: Vec<[usize; 1]> = lens.iter().map(|&len| [len]).collect();
        let tensors = shapes.iter().enumerate().map(|(i, shape)| {
            let bytes = &data[i % 7..i % 7 + shape[0]];
            (format!("{i}"), TensorView::new(Dtype::U8, shape, bytes).unwrap())
        });
        let options = SaveOptions::new().durable(false).digests(digests);
        let (_dir, path) = place("saved");
        let told = Arc::new(AtomicU64::new(0));
        let counting = told.clone();
        let watched = options.clone().progress(move |progress| {
            counting.fetch_max(progress.bytes_done, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        for options in [&options, &watched] {
            save(&path, tensors.clone(), options).unwrap();
            let file = fs::read(&path).unwrap();
            prop_assert!(file == serialize(tensors.clone(), options).unwrap());
            if digests {
                let file = Checkpoint::from_source(file, "bytes").unwrap();
                let report = digest::verify(&file, &DigestOptions::new()).unwrap();
                prop_assert_eq!(report[0].checked.len(), lens.len());
            }
        }
        prop_assert_eq!(told.load(Ordering::Relaxed), lens.iter().sum::<usize>() as u64);
    }
}

#[test]
fn a_cancelled_save_leaves_nothing() {
    let (dir, path) = place("saved");
    let tensors = (0..1000).map(|i| (i.to_string(), bytes_by(10, |sink| sink(&[7; 10]))));
    let options = SaveOptions::new().progress(|_| ControlFlow::Break(()));
    refused!(save(&path, tensors, &options), ErrorKind::Cancelled);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
