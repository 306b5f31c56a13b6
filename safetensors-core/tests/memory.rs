//! Loading takes the memory of the tensors and little more. This test is a program of its own,
//! because the peak is measured for the whole process.
#![cfg(all(feature = "std", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;

use safetensors_core::framework::{Framework, Support};
use safetensors_core::{
    Checkpoint, Dtype, LoadOptions, Result, TensorBuf, TensorSource, framework,
};

const MIB: u64 = 1 << 20;

/// The peak memory of the process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn loading_takes_the_tensors_bytes_and_32_mib_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // 24 large tensors and 1,000 small ones. The file is a hole except for its header.
    let lens = (0..1024_u64).map(|i| if i < 24 { 8 * MIB } else { 16 * 1024 });
    let mut entries = Vec::new();
    let mut end = 0;
    for (i, len) in lens.enumerate() {
        let (begin, shape) = (end, len / 2);
        end += len;
        entries.push(format!(
            r#""t{i}":{{"dtype":"BF16","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let json = format!("{{{}}}", entries.join(","));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + end).unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    let before = peak();
    let plain = checkpoint.read_all(&LoadOptions::new().threads(8)).unwrap();
    let taken = peak() - before;
    assert!((end..end + 32 * MIB).contains(&taken), "{} MiB for {} MiB", taken / MIB, end / MIB);
    drop(plain);

    let wide = checkpoint.read_all(&LoadOptions::new().threads(8).floats_as(Dtype::F32)).unwrap();
    let taken = peak() - before;
    assert!(
        (2 * end..2 * end + 32 * MIB).contains(&taken),
        "{} MiB for {} MiB",
        taken / MIB,
        2 * end / MIB
    );
    drop(wide);

    // A dtype that the framework lacks is widened while it is read, not afterwards.
    let wide = framework::load::<Wide>(&checkpoint, &(), &LoadOptions::new().threads(8)).unwrap();
    let taken = peak() - before;
    assert!(wide.values().all(|buf| buf.dtype() == Dtype::F32));
    assert!(
        (2 * end..2 * end + 32 * MIB).contains(&taken),
        "{} MiB for {} MiB",
        taken / MIB,
        2 * end / MIB
    );
}

/// A framework that lacks BF16 and widens it to F32.
struct Wide;

impl Framework for Wide {
    const NAME: &'static str = "wide";
    type Tensor = TensorBuf;
    type Device = ();

    fn support(dtype: Dtype) -> Support {
        if dtype == Dtype::BF16 { Support::Widened(Dtype::F32) } else { Support::Exact }
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorBuf> {
        Ok(buf)
    }

    fn source(tensor: &TensorBuf) -> Result<impl TensorSource + '_> {
        Ok(tensor)
    }
}
