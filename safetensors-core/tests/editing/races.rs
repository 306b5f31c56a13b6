//! Readers that open a file while its header is written in place: each sees the header from before
//! the edit, the one from after it, or an error.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use safetensors_core::edit::{Edit, Edited};
use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
use tempfile::tempdir;

/// The length of the metadata. It is so long that readers open the file while it is written.
const LEN: usize = 1 << 17;

/// How often the file is opened in all.
const OPENS: usize = 4000;

/// The results of the readers.
#[derive(Debug, Default)]
struct Counts {
    opens: AtomicUsize,
    mixtures: AtomicUsize,
    errors: AtomicUsize,
}

impl Counts {
    /// Opens the file once and checks that its metadata is that of a single edit.
    fn open(&self, path: &Path) {
        self.opens.fetch_add(1, Ordering::Relaxed);
        match Checkpoint::open(path) {
            Ok(checkpoint) => {
                let value = checkpoint.metadata()["value"].as_bytes();
                let whole = value.len() == LEN && value == vec![value[0]; LEN];
                self.mixtures.fetch_add(usize::from(!whole), Ordering::Relaxed);
            }
            Err(_) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn no_reader_accepts_a_header_that_is_half_written() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let value = |fill: &str| [("value", fill.repeat(LEN))];
    let view = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    save(&path, [("w", view)], &SaveOptions::new().metadata(value("a"))).unwrap();
    let (counts, done) = (Counts::default(), AtomicBool::new(false));
    let mut edits = 0;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    counts.open(&path);
                }
            });
        }
        while counts.opens.load(Ordering::Relaxed) < OPENS {
            let fill = if edits % 2 == 0 { "b" } else { "a" };
            let edit = Edit::open(&path).unwrap().set_metadata(value(fill)).durable(false);
            assert_eq!(edit.apply().unwrap(), Edited::InPlace);
            edits += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    eprintln!("{edits} edits, {counts:?}");
    assert_eq!(counts.mixtures.into_inner(), 0, "of {} opens", counts.opens.into_inner());
}
