//! Files that are damaged, or change after they were opened.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom, Write};
use std::time::SystemTime;

use super::save_tensors;
use crate::support::*;

#[test]
fn a_file_truncated_after_it_was_opened() {
    let (_directory, path) = place("model.safetensors");
    save_tensors(&path, &[100, 5 << 20, 100]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let cut = checkpoint.tensor("t00001").unwrap().file_offset() + (4 << 20) + 1;
    OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();

    // The first tensor still has all its bytes, but they may have changed. The second is cut, the
    // third is gone.
    let error = checkpoint.tensor("t00000").unwrap().read().unwrap_err();
    assert!(error.to_string().contains("has changed"), "{error}");
    let alone = ["t00001", "t00002"]
        .map(|name| (Some(name), checkpoint.tensor(name).unwrap().read().unwrap_err()));
    let together = [1, 2, 8].map(|threads| {
        (None, checkpoint.read_all(&LoadOptions::new().threads(threads)).unwrap_err())
    });
    for (name, error) in alone.into_iter().chain(together) {
        let ended = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        assert!(matches!(error.kind(), ErrorKind::Io(error) if ended(error)), "{error}");
        assert_eq!(error.file(), path.to_str());
        match name {
            Some(name) => assert_eq!(error.tensor(), Some(name)),
            // The error names the tensor that a thread read first.
            None => assert!(matches!(error.tensor(), Some("t00001" | "t00002")), "{error}"),
        }
        assert!(error.to_string().contains(error.tensor().unwrap()), "{error}");
    }
    let error = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap_err();
    assert_eq!(error.tensor(), Some("t00001"), "one thread reads in order");
}

#[test]
fn a_byte_that_is_not_a_bool() {
    let header = concat!(
        r#"{"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},"#,
        r#""x":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#,
    );
    let directory = tempdir().unwrap();
    for (data, index, found) in
        [([0, 1, 2, 1, 9], 2, 2), ([255, 1, 0, 1, 9], 0, 255), ([0, 0, 0, 3, 9], 3, 3)]
    {
        let path = write(directory.path(), "model.safetensors", file_with(header, &data));
        let checkpoint = Checkpoint::open(&path).unwrap();
        let alone = checkpoint.tensor("mask").unwrap().read().unwrap_err();
        let together = checkpoint.read_all(&LoadOptions::new()).unwrap_err();
        for error in [alone, together] {
            let expected = ErrorKind::InvalidBool { index, found };
            assert_eq!(format!("{:?}", error.kind()), format!("{expected:?}"));
            assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("mask")));
            assert!(error.to_string().contains("\"mask\""), "{error}");
        }
        // The bytes can still be viewed.
        let archive = SafeTensors::parse(file_with(header, &data)).unwrap();
        let view = archive.view("mask").unwrap();
        assert_eq!(view.data(), &data[..4]);
        assert!(matches!(
            view.as_slice::<bool>().unwrap_err().kind(),
            ErrorKind::InvalidBool { .. }
        ));
        assert_eq!(checkpoint.tensor("x").unwrap().read().unwrap().bytes(), [9]);
    }
}

#[test]
fn a_file_that_changes_while_it_is_open_is_an_error() {
    let (dir, path) = place("model.safetensors");
    let buf = TensorBuf::from_vec(vec![4], vec![1_u8, 2, 3, 4]).unwrap();
    save(&path, [("w", &buf)], &SaveOptions::new()).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    // Set the time far into the past, so that the write below certainly changes it.
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.read_all(&LoadOptions::new()).unwrap();

    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[9]).unwrap();
    let errors = [
        checkpoint.read_all(&LoadOptions::new()).unwrap_err(),
        checkpoint.tensor("w").unwrap().read().unwrap_err(),
        checkpoint.tensor("w").unwrap().slice((1..,)).unwrap().read().unwrap_err(),
        checkpoint
            .tensor("w")
            .unwrap()
            .read_with(&LoadOptions::new().all_as(Dtype::F32))
            .unwrap_err(),
        checkpoint.tensor("w").unwrap().pieces().next().unwrap().read().unwrap_err(),
        Rewrite::from_checkpoint(&checkpoint)
            .save(dir.path().join("b"), &SaveOptions::new())
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("has changed since it was opened"), "{error}");
        assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    }
}
