//! Reading from and saving to remote stores: a web server on the loopback that may misbehave, files
//! and memory. `dev/scripts/s3_interop.py` has the same for buckets of S3.

#[allow(dead_code, reason = "the tests of the command use the rest")]
mod bucket;
mod buckets;
mod clouds;
mod directories;
mod experts;
mod faults;
mod loading;
mod requests;
mod runtimes;
mod saving;
mod server;
#[cfg(feature = "tracing")]
mod spans;
mod uploads;

use safetensors_core::{SaveOptions, TensorBuf, serialize};
use safetensors_hub::remote::RemoteOptions;
use safetensors_testing::tensors::repeated;

pub(crate) const MIB: usize = 1 << 20;

/// `len` bytes that differ by position and seed. They repeat after a prime number of bytes, so that
/// bytes from another place are noticed.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    repeated(len, 65_521, |i| ((i * 31 + (i >> 8) + seed) % 251) as u8)
}

/// Tensors of bytes with these names and lengths.
pub(crate) fn tensors(lengths: &[(&str, usize)]) -> Vec<(String, TensorBuf)> {
    let tensor = |(seed, &(name, len)): (usize, &(&str, usize))| {
        (name.to_owned(), TensorBuf::from_vec(vec![len], pattern(len, seed)).unwrap())
    };
    lengths.iter().enumerate().map(tensor).collect()
}

/// Tensors with their names, as a save takes them.
pub(crate) fn named(
    tensors: &[(String, TensorBuf)],
) -> impl Iterator<Item = (&String, &TensorBuf)> {
    tensors.iter().map(|(name, buf)| (name, buf))
}

/// Returns the bytes of a file with tensors.
pub(crate) fn file(tensors: &[(String, TensorBuf)]) -> Vec<u8> {
    serialize(named(tensors), &SaveOptions::new()).unwrap()
}

/// Options that give up soon.
pub(crate) fn options() -> RemoteOptions {
    RemoteOptions::new().retries(3)
}
