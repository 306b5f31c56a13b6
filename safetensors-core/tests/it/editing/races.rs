//! Readers that open a file while its header is edited: each sees the header from before the edit
//! or the one from after it. Of an edit in place it may also see an error.

use std::sync::atomic::AtomicBool;
use std::thread;

use safetensors_core::edit::Edited;

use crate::support::*;

/// The length of the metadata. It is so long that readers open the file while it is written.
const LEN: usize = 1 << 17;

/// How often the file is opened in all.
const OPENS: usize = 4000;

/// Opens a file and returns the metadata.
type Reader = fn(&Path) -> Result<String>;

fn opened(path: &Path) -> Result<String> {
    Ok(Checkpoint::open(path)?.metadata()["value"].clone())
}

/// As other libraries do, this takes the bytes as it finds them.
#[cfg_attr(not(unix), allow(dead_code, reason = "its test is for Unix"))]
fn read_once(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(safetensors_core::ErrorKind::Io)?;
    Ok(SafeTensors::parse(bytes)?.metadata()["value"].clone())
}

/// The results of the readers.
#[derive(Debug, Default)]
struct Counts {
    opens: AtomicUsize,
    mixtures: AtomicUsize,
    errors: AtomicUsize,
}

impl Counts {
    /// Opens the file once and checks that its metadata comes from a single edit.
    fn open(&self, path: &Path, reader: Reader) {
        self.opens.fetch_add(1, Ordering::Relaxed);
        match reader(path) {
            Ok(value) => {
                let value = value.as_bytes();
                let whole = value.len() == LEN && value == vec![value[0]; LEN];
                self.mixtures.fetch_add(usize::from(!whole), Ordering::Relaxed);
            }
            Err(_) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Opens a file with several readers while it is edited again and again.
fn meet(readers: [Reader; 4], opens: usize, in_place: bool) -> Counts {
    let (_directory, path) = place("model.safetensors");
    let value = |fill: &str| [("value", fill.repeat(LEN))];
    let view = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    save(&path, [("w", view)], &SaveOptions::new().metadata(value("a"))).unwrap();
    let (counts, done) = (Counts::default(), AtomicBool::new(false));
    let mut edits = 0;
    thread::scope(|scope| {
        for reader in readers {
            let (counts, done, path) = (&counts, &done, &path);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    counts.open(path, reader);
                }
            });
        }
        while counts.opens.load(Ordering::Relaxed) < opens {
            let fill = if edits % 2 == 0 { "b" } else { "a" };
            let edit = Edit::open(&path).unwrap().in_place(in_place).durable(false);
            let edited = edit.set_metadata(value(fill)).apply().unwrap();
            assert_eq!(edited, if in_place { Edited::InPlace } else { Edited::Rewritten });
            edits += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    eprintln!("{edits} edits, {counts:?}");
    counts
}

#[test]
fn no_reader_accepts_a_header_that_is_half_written() {
    let counts = meet([opened; 4], OPENS, true);
    let opens = counts.opens.into_inner();
    assert!(counts.errors.into_inner() < opens / 2);
    assert_eq!(counts.mixtures.into_inner(), 0, "of {opens} opens");
}

/// Other systems may refuse to replace a file that a reader has open.
#[cfg(unix)]
#[test]
fn every_reader_finds_a_file_that_is_not_edited_in_place() {
    let counts = meet([opened, read_once, opened, read_once], OPENS / 4, false);
    let found = (counts.mixtures.into_inner(), counts.errors.into_inner());
    assert_eq!(found, (0, 0), "of {} opens", counts.opens.into_inner());
}

/// A checkpoint that was opened before the edit stays unchanged.
#[test]
fn an_open_checkpoint_keeps_the_old_file() {
    let (_directory, path) = place("model.safetensors");
    let view = TensorView::from_slice(&[3], &[7_u8, 8, 9]).unwrap();
    save(&path, [("w", view)], &SaveOptions::new().align(4096)).unwrap();
    let open = Checkpoint::open(&path).unwrap();
    let edit = Edit::open(&path).unwrap().rename([("w", "v")]);
    assert_eq!(edit.apply().unwrap(), Edited::Rewritten);
    let read = open.read_all(&LoadOptions::new()).unwrap();
    assert_eq!((open.get("w").is_some(), read[0].bytes()), (true, &[7, 8, 9][..]));
    assert!(Checkpoint::open(&path).unwrap().get("v").is_some());
}
