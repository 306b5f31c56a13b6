//! Mapped files, which are safe only as long as nothing changes them.
#![allow(
    unsafe_code,
    reason = "the peers and the rows about views map files, which is the caller's promise"
)]

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use memmap2::Mmap;
use safetensors_bridge::Checkpoint;

/// Maps a file of the test data.
pub fn map(path: &Path) -> Result<Mmap> {
    // SAFETY: the test data are ours, in a folder of our own, and do not change once they are
    // written.
    Ok(unsafe { Mmap::map(&File::open(path)?) }?)
}

/// Opens a file of the test data as candle does, mapped.
pub fn candle_map(path: &Path) -> Result<MmapedSafetensors> {
    // SAFETY: as for `map`.
    Ok(unsafe { MmapedSafetensors::new(path) }?)
}

/// Returns the builder through which candle's models load a file of the test data.
pub fn candle_var_builder(path: &Path, dtype: DType) -> Result<VarBuilder<'static>> {
    // SAFETY: as for `map`.
    Ok(unsafe { VarBuilder::from_mmaped_safetensors(&[path], dtype, &Device::Cpu) }?)
}

/// Opens a file of the test data as we do, mapped.
pub fn checkpoint_map(path: &Path) -> Result<Checkpoint<Mmap>> {
    // SAFETY: as for `map`.
    Ok(unsafe { Checkpoint::mmap(path) }?)
}

/// Returns how many pages of a mapped file are in the page cache, and how many it has.
#[cfg(target_os = "linux")]
pub fn resident_pages(map: &Mmap) -> Result<(usize, usize)> {
    let mut pages = vec![0_u8; map.len().div_ceil(4096)];
    // SAFETY: the range is the whole mapping. The vector has a byte for each page, because pages
    // have at least 4096 bytes.
    if unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) } != 0
    {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok((pages.iter().filter(|&&page| page & 1 == 1).count(), pages.len()))
}
