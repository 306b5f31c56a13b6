//! Processes that are killed while they edit a file.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use safetensors_core::edit::{Edit, Edited, restore_header};
use safetensors_core::{Checkpoint, ErrorKind, SafeTensors, SaveOptions, TensorView, save};
use safetensors_testing::process::command_of;
use tempfile::tempdir;

use crate::support;

/// The length of the metadata, which makes the header several pages long.
const LEN: usize = 1 << 13;

fn value(fill: char) -> [(&'static str, String); 1] {
    [("value", fill.to_string().repeat(LEN))]
}

/// The character that fills the whole metadata.
fn fill_of(path: &Path) -> Result<u8, safetensors_core::Error> {
    let checkpoint = Checkpoint::open(path)?;
    let value = checkpoint.metadata()["value"].as_bytes();
    assert!(value == vec![value[0]; LEN], "a mixture");
    Ok(value[0])
}

/// Not a test of its own: edits a file until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var("CHILD_FILE") else { return };
    let in_place = std::env::var_os("CHILD_IN_PLACE").is_some();
    let other = if in_place { Edited::Rewritten } else { Edited::InPlace };
    for fill in ['b', 'a'].into_iter().cycle() {
        let edit = Edit::open(&path).unwrap().in_place(in_place).set_metadata(value(fill));
        // The metadata may have this value already.
        assert_ne!(edit.apply().unwrap(), other);
        println!("edited");
    }
}

fn create(path: &Path) {
    let view = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    save(path, [("w", view)], &SaveOptions::new().metadata(value('a'))).unwrap();
}

/// Starts a process that edits the file, and kills it some time after its first edit.
fn kill_an_editor(path: &Path, in_place: bool, round: u64) {
    let mut child = command_of(child);
    child.env("CHILD_FILE", path);
    if in_place {
        child.env("CHILD_IN_PLACE", "1");
    }
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    while !line.contains("edited") {
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "{line}");
    }
    sleep(Duration::from_micros(round * 397 % 9001));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Nothing has to be restored before another library can read the file.
#[test]
fn a_killed_edit_leaves_a_file_that_every_reader_opens() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    create(&path);
    for round in 0..30 {
        kill_an_editor(&path, false, round);
        SafeTensors::parse(fs::read(&path).unwrap()).unwrap();
        fill_of(&path).unwrap();
    }
    assert!(!restore_header(&path).unwrap());
    Edit::open(&path).unwrap().set_metadata(value('c')).apply().unwrap();
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn a_killed_edit_in_place_leaves_one_of_the_two_headers_or_is_found_torn_and_restored() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    create(&path);
    let mut torn = 0;
    for round in 0..60 {
        kill_an_editor(&path, true, round);
        let before = fill_of(&path);
        let restored = restore_header(&path).unwrap();
        match before {
            Ok(fill) => assert!(!restored && fill_of(&path).unwrap() == fill),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::TornHeader), "{error}");
                assert!(restored);
                torn += 1;
                fill_of(&path).unwrap();
            }
        }
        // At most a temporary file of the backup and the lock file of the directory are left until
        // the next edit.
        let mut names = support::names_in(directory.path());
        names.retain(|name| name != ".safetensors.lock");
        assert!(names.len() <= 2 && names.contains(&"model.safetensors".into()), "{names:?}");
    }
    let edit = Edit::open(&path).unwrap().in_place(true).set_metadata(value('c'));
    assert_eq!(edit.apply().unwrap(), Edited::InPlace);
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
    eprintln!("{torn} of 60 kills tore the header");
}
