//! A conversion to a bucket that is interrupted while parts are on their way.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::bucket::Bucket;
use super::{SaveOptions, TensorBuf, serialize, temp_dir};
use crate::fixtures::undo_ignored_signals;

/// Makes a file of 20 MiB: two parts of an upload, and half of a part.
fn large(dir: &Path) {
    let tensor = TensorBuf::from_vec(vec![20 << 20], vec![1_u8; 20 << 20]).unwrap();
    fs::write(
        dir.join("in.safetensors"),
        serialize([("w", &tensor)], &SaveOptions::new()).unwrap(),
    )
    .unwrap();
}

/// Converts the large file, and returns when the server has the first part and never answers to the
/// others.
fn begin(bucket: &Bucket, dir: &Path, out: &str) -> Child {
    undo_ignored_signals();
    bucket.answer_parts(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.current_dir(dir).args(["convert", "in.safetensors", out]);
    command.env("AWS_ENDPOINT", &bucket.endpoint).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_SKIP_SIGNATURE", "true").env("AWS_REGION", "us-east-1");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while bucket.unfinished().iter().sum::<usize>() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        assert!(begun.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn an_interrupted_upload_leaves_nothing() {
    let dir = temp_dir();
    large(dir.path());
    for (name, signal) in [("INT", 2), ("TERM", 15)] {
        for out in ["s3://bucket/out.safetensors", "s3://bucket/out"] {
            let bucket = Bucket::new();
            let mut child = begin(&bucket, dir.path(), out);
            let interrupted = Instant::now();
            let mut kill = Command::new("kill");
            let signalled = kill.args([&format!("-{name}"), &child.id().to_string()]);
            assert!(signalled.status().unwrap().success());
            assert_eq!(child.wait().unwrap().signal(), Some(signal), "{out}");
            assert!(interrupted.elapsed() < Duration::from_secs(15), "{:?}", interrupted.elapsed());
            assert_eq!((bucket.begun(), bucket.unfinished()), (1, vec![]), "{out}");
        }
    }
}
