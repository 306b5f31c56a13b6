//! Uploads in parts to a server: complete, or nothing is left of them.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use safetensors_core::{ErrorKind, SaveOptions, ShardOptions};
use safetensors_hub::remote::{RemoteOptions, abort_uploads};
use safetensors_testing::process::is_alone;

use super::bucket::Bucket;
use super::{MIB, file, named, options, tensors};

const ADDRESS: &str = "s3://bucket/model.safetensors";

fn at(bucket: &Bucket) -> RemoteOptions {
    let options = options().option("endpoint", &bucket.endpoint).option("allow_http", "true");
    options.option("skip_signature", "true").retries(0)
}

#[test]
fn an_upload_of_several_parts_is_complete() {
    let (bucket, tensors) = (Bucket::new(), tensors(&[("a", 20 * MIB), ("b", 3)]));
    at(&bucket).save(ADDRESS, named(&tensors), &SaveOptions::new()).unwrap();
    assert!(bucket.object("bucket/model.safetensors").unwrap() == file(&tensors));
    assert!(bucket.unfinished().is_empty());
}

#[test]
fn nothing_is_left_of_a_save_that_does_not_end() {
    let tensors = tensors(&[("a", 20 * MIB), ("b", 20 * MIB)]);
    let named = || named(&tensors);
    let after = |bytes: u64, end: fn() -> ControlFlow<()>| {
        SaveOptions::new().progress(move |progress| {
            if progress.bytes_done > bytes { end() } else { ControlFlow::Continue(()) }
        })
    };
    // One file, and the second of two.
    let bucket = Bucket::new();
    let cancelled = after(18 << 20, || ControlFlow::Break(()));
    let error = at(&bucket).save(ADDRESS, named(), &cancelled).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert_eq!((bucket.begun(), bucket.unfinished()), (1, vec![]));
    let cancelled = after(38 << 20, || ControlFlow::Break(()));
    let shards = ShardOptions::new().max_shard_size((20 << 20).into()).save_options(cancelled);
    let saved = at(&bucket).save_sharded("s3://bucket/m", named(), &shards);
    assert!(matches!(saved.unwrap_err().kind(), ErrorKind::Cancelled));
    assert_eq!((bucket.begun(), bucket.unfinished()), (3, vec![]));

    // A panic of the saving code.
    let bucket = Bucket::new();
    let panicking = after(18 << 20, || std::panic::resume_unwind(Box::new("in a callback")));
    let save = || at(&bucket).save(ADDRESS, named(), &panicking);
    catch_unwind(AssertUnwindSafe(save)).unwrap_err();
    assert_eq!((bucket.begun(), bucket.unfinished()), (1, vec![]));

    // A part that is never answered.
    let bucket = Bucket::new();
    bucket.answer_parts(1);
    let impatient = at(&bucket).option("read_timeout", "300ms");
    let error = impatient.save(ADDRESS, named(), &SaveOptions::new()).unwrap_err();
    assert!(error.to_string().contains("took no bytes and said nothing for 600ms"), "{error}");
    assert_eq!((bucket.begun(), bucket.unfinished()), (1, vec![]));
    assert!(bucket.object("bucket/model.safetensors").is_none());
}

/// In a separate process, because it concerns all uploads of a process.
#[test]
fn aborted_uploads_and_later_ones_are_errors() {
    if !is_alone(aborted_uploads_and_later_ones_are_errors) {
        return;
    }
    let tensors = tensors(&[("a", 40 * MIB)]);
    let bucket = Bucket::new();
    let aborting = SaveOptions::new().progress(|progress| {
        if progress.bytes_done > 18 << 20 {
            abort_uploads();
        }
        ControlFlow::Continue(())
    });
    for options in [aborting, SaveOptions::new()] {
        let error = at(&bucket).save(ADDRESS, named(&tensors), &options).unwrap_err();
        assert!(error.to_string().contains("all uploads of this process were aborted"), "{error}");
        assert_eq!((bucket.begun(), bucket.unfinished()), (1, vec![]));
    }
    assert!(bucket.object("bucket/model.safetensors").is_none());
}
