//! A bucket of S3, with a server that speaks its protocol. `dev/scripts/s3_interop.py` starts one,
//! runs these tests, and looks at the bucket with another library.

use std::ops::ControlFlow;

use safetensors_core::slice::RankPart;
use safetensors_core::{ErrorKind, LoadOptions, SaveOptions, ShardOptions};
use safetensors_hub::remote::RemoteOptions;

use super::{MIB, file, named, tensors};

/// Options for the server that the environment names.
fn server() -> RemoteOptions {
    let endpoint = std::env::var("SAFETENSORS_S3_ENDPOINT").unwrap();
    RemoteOptions::new()
        .option("endpoint", endpoint)
        .option("allow_http", "true")
        .option("region", "us-east-1")
        .option("access_key_id", "AKIATESTING")
        .option("secret_access_key", "very-secret-key")
        .retries(2)
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn a_file_uploaded_by_another_library_is_read() {
    let checkpoint = server().open("s3://bucket/python/model.safetensors").unwrap();
    let values = checkpoint.tensor("values").unwrap().read().unwrap();
    let expected: Vec<i32> = (0..1 << 20).collect();
    assert_eq!(values.as_slice::<i32>().unwrap(), expected);
    let part = checkpoint.tensor("values").unwrap().slice(RankPart::new(0, 1, 4)).unwrap();
    let part = part.read().unwrap();
    assert_eq!(part.as_slice::<i32>().unwrap(), &expected[1 << 18..1 << 19]);
    // By the directory; the store lists its files.
    assert_eq!(server().open("s3://bucket/python").unwrap().len(), 1);
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn files_are_saved_in_one_part_or_several() {
    let tensors = tensors(&[("a", 20 * MIB), ("b", 3 * MIB), ("c", 5)]);
    let address = "s3://bucket/rust/one.safetensors";
    server().save(address, named(&tensors), &SaveOptions::new()).unwrap();
    let checkpoint = server().open(address).unwrap();
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    for (tensor, buf) in checkpoint.tensors().zip(read) {
        let (_, expected) = tensors.iter().find(|(name, _)| name == tensor.name()).unwrap();
        assert!(buf.bytes() == expected.bytes());
    }
    // One that changed since it was opened.
    server().save(address, named(&tensors[..2]), &SaveOptions::new()).unwrap();
    let error = checkpoint.tensor("b").unwrap().read().unwrap_err();
    assert!(error.to_string().contains("has changed since it was opened"), "{error}");
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn checkpoints_of_several_files_replace_one_another() {
    let address = "s3://bucket/rust/sharded";
    for (round, size) in [1_000_000_u64, 4_000_000, 1_000_000, 400_000, 600_000].iter().enumerate()
    {
        let mut tensors = tensors(&[("x", 300_000), ("y", 300_000), ("z", 300_000)]);
        let name = format!("round{round}");
        tensors[0].0.clone_from(&name);
        let options = ShardOptions::new().max_shard_size((*size).into());
        let saved = server().save_sharded(address, named(&tensors), &options).unwrap();
        let checkpoint = server().open(address).unwrap();
        assert_eq!((checkpoint.len(), checkpoint.files().len()), (3, saved.files.len()));
        assert_eq!(checkpoint.tensor(&name).unwrap().read().unwrap().bytes(), tensors[0].1.bytes());
        checkpoint.check_unchanged().unwrap();
    }
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn names_with_special_characters_are_saved_and_read() {
    let address = "s3://bucket/rust/named";
    let tensors = tensors(&[("x", 300_000), ("y", 300_000)]);
    let pattern = "mödel ~#%[1]{x}%20{suffix}.safetensors".parse().unwrap();
    let options = ShardOptions::new().max_shard_size(400_000.into()).file_pattern(pattern);
    // The second save copies the files of the first one to second names.
    for _ in 0..2 {
        server().save_sharded(address, named(&tensors), &options).unwrap();
        let checkpoint = server().open(address).unwrap();
        assert_eq!((checkpoint.len(), checkpoint.files().len()), (2, 2));
        assert_eq!(checkpoint.tensor("y").unwrap().read().unwrap().bytes(), tensors[1].1.bytes());
    }
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn a_save_that_fails_leaves_nothing() {
    let tensors = tensors(&[("a", 30 * MIB)]);
    let cancelling = SaveOptions::new().progress(|progress| {
        if progress.bytes_done > 20 << 20 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let address = "s3://bucket/failed/model.safetensors";
    let error = server().save(address, named(&tensors), &cancelling).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    let error = server().open(address).unwrap_err();
    let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
    assert_eq!(found.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(error.file(), Some(address));
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn missing_objects_are_errors_that_show_no_credentials() {
    let tensors = tensors(&[("a", 5)]);
    let missing = "s3://no-such-bucket/model.safetensors";
    let mut errors = vec![
        server().open(missing).unwrap_err(),
        server().open("s3://bucket/nothing/here").unwrap_err(),
    ];
    // Some servers make a bucket by saving to it.
    if std::env::var_os("SAFETENSORS_S3_MAKES_BUCKETS").is_none() {
        let saved = server().save(missing, named(&tensors), &SaveOptions::new());
        errors.push(saved.unwrap_err());
    }
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert!(!format!("{error} {error:?}").contains("very-secret"), "{error}");
    }
}

#[test]
#[ignore = "needs a server of S3: dev/scripts/s3_interop.py"]
fn a_bucket_has_the_bytes_of_a_local_file() {
    let tensors = tensors(&[("a", 100), ("b", 7)]);
    let address = "s3://bucket/rust/small.safetensors";
    server().save(address, named(&tensors), &SaveOptions::new()).unwrap();
    let checkpoint = server().open(address).unwrap();
    let source = checkpoint.files()[0].safetensors().source();
    let expected = file(&tensors);
    let mut bytes = vec![0; expected.len()];
    safetensors_core::ReadAt::read_exact_at(source, &mut bytes, 0).unwrap();
    assert_eq!(bytes, expected);
}
