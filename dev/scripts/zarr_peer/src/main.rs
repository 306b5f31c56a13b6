//! An array of Zarr without compression, by zarrs, for `dev/scripts/peers_in_python.py`:
//!
//! ```text
//! zarr-peer write NUMBERS FOLDER PLANES    numbers of F32 become chunks of so many planes
//! zarr-peer read FOLDER                    all of the array
//! zarr-peer slice FOLDER                   a part of each plane
//! ```
//!
//! The last two print the seconds that it took, and a checksum, as JSON.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;

/// The shape of the array: 1 GiB of F32.
const SHAPE: [u64; 3] = [256, 1024, 1024];
/// The part of each plane.
const PART: std::ops::Range<u64> = 100..356;
const NAME: &str = "u";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", numbers, folder, planes] => write(numbers, folder, planes.parse()?),
        ["read", folder] => read(folder, [0..SHAPE[0], 0..SHAPE[1], 0..SHAPE[2]]),
        ["slice", folder] => read(folder, [0..SHAPE[0], PART, PART]),
        _ => Err("expected write, read or slice".into()),
    }
}

fn write(numbers: &str, folder: &str, planes: u64) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(FilesystemStore::new(folder)?);
    let chunk = vec![planes, SHAPE[1], SHAPE[2]];
    let array = ArrayBuilder::new(SHAPE.to_vec(), chunk, data_type::float32(), 0.0_f32)
        .build(store, &format!("/{NAME}"))?;
    array.store_metadata()?;
    let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&std::fs::read(numbers)?);
    let all = [0..SHAPE[0], 0..SHAPE[1], 0..SHAPE[2]];
    Ok(array.store_array_subset(&all, &numbers)?)
}

fn read(folder: &str, part: [std::ops::Range<u64>; 3]) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let store = Arc::new(FilesystemStore::new(folder)?);
    let array = Array::open(store, &format!("/{NAME}"))?;
    let numbers: Vec<f32> = array.retrieve_array_subset(&part)?;
    let seconds = start.elapsed().as_secs_f64();
    let (key, values) = (fletcher(NAME.as_bytes()) | 1, fletcher(bytemuck::cast_slice(&numbers)));
    let found = format!("{:016x}", values.wrapping_mul(key));
    println!("{}", serde_json::json!({ "seconds": seconds, "growth": null, "found": found }));
    Ok(())
}

/// Returns the checksum of `dev/benches/src/files.rs`.
fn fletcher(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let (mut sum, mut sums) = (bytes.len() as u64, 0_u64);
    for word in words.chain(tail.iter().map(|&byte| byte.into())) {
        sum = sum.wrapping_add(word);
        sums = sums.wrapping_add(sum);
    }
    sum ^ sums.rotate_left(32)
}
