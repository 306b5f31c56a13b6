//! Measures the commands that read values, compared with the least work that they must do: to read
//! the same files once.
//!
//! Run it with `cargo bench -p safetensors-bridge-cli --bench values`. The weights are 1 GiB of
//! F32, and the same as BF16, F16 and F8_E4M3. The environment variable `SAFETENSORS_BENCH_MIB`
//! sets another number of MiB. The files are in memory, as the page cache holds them, so that no
//! disk is measured.
#![allow(missing_docs, reason = "a program, whose documentation is above")]

mod turns;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};
use safetensors_core::io::FileSource;
use safetensors_core::{ConvertOptions, Dtype, ReadAt, SaveOptions, TensorView, save};
use turns::{row, status};

const SAMPLES: usize = 9;

/// The number of elements of a tensor: 64 MiB of F32.
const ELEMENTS: usize = 16 << 20;

/// The number of bytes that the limit reads at once.
const PIECE: u64 = 4 << 20;

fn main() -> Result<()> {
    let mib =
        std::env::var("SAFETENSORS_BENCH_MIB").map_or(Ok(1024), |mib| mib.parse::<usize>())?;
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    let (wide, changed) = (at("f32"), at("other"));
    let narrow @ [brains, halves, bytes] = &["bf16", "f16", "f8"].map(at);
    write_weights(&wide, narrow, &changed, mib.div_ceil(64))?;

    turns::title(SAMPLES);
    let run = |arguments: &[&Path]| -> Result<()> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
        // Code 1 of `diff` says that the files differ.
        status(command.args(arguments), &[0, 1])
    };
    let limit = |files: &[&Path]| files.iter().try_for_each(|file| read(file));
    for (name, files) in [
        ("stats of F32", &[wide.as_path()][..]),
        ("stats of BF16", &[brains]),
        ("stats of F16", &[halves]),
        ("stats of F8_E4M3", &[bytes]),
        ("diff of F32 and BF16", &[&wide, brains]),
        ("diff of F32 and other F32", &[&wide, &changed]),
        ("diff of F32 and equal F32", &[&wide, &wide]),
    ] {
        let command = name.split(' ').next().unwrap_or_default();
        let arguments: Vec<_> =
            [Path::new(command)].into_iter().chain(files.iter().copied()).collect();
        let limit_name = match files {
            [_] => "limit: one read of the file",
            _ => "limit: one read of both files",
        };
        row(SAMPLES, (name, &|| run(&arguments)), (limit_name, &|| limit(files)))?;
    }
    Ok(())
}

/// Reads a file once, with the threads of the command, each into a buffer that it uses again.
fn read(path: &Path) -> Result<()> {
    let file = FileSource::open(path)?;
    let (len, next) = (file.byte_len(), AtomicU64::new(0));
    let work = || -> std::io::Result<()> {
        let mut buffer = vec![0; PIECE as usize];
        loop {
            let start = next.fetch_add(PIECE, Ordering::Relaxed);
            let Some(left) = len.checked_sub(start).filter(|&left| left > 0) else { return Ok(()) };
            let piece = &mut buffer[..left.min(PIECE) as usize];
            file.read_exact_at(piece, start)?;
        }
    };
    thread::scope(|scope| {
        let threads = safetensors_core::framework::default_threads();
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?.context("reading")
        })
    })
}

/// Writes tensors of weights, the same as BF16, F16 and F8_E4M3, and slightly different ones.
fn write_weights(wide: &Path, narrow: &[PathBuf; 3], changed: &Path, tensors: usize) -> Result<()> {
    let weights = weights();
    let other: Vec<_> = weights.iter().map(|weight| weight * 1.000_1).collect();
    let shape = [ELEMENTS / 4096, 4096];
    let save = |path: &Path, view: TensorView<'_>| -> Result<()> {
        let tensors = (0..tensors).map(|i| (format!("layers.{i}.weight"), view));
        Ok(save(path, tensors, &SaveOptions::new().durable(false))?)
    };
    let view = TensorView::from_slice(&shape, &weights)?;
    save(wide, view)?;
    for (path, dtype) in narrow.iter().zip([Dtype::BF16, Dtype::F16, Dtype::F8_E4M3]) {
        save(path, view.convert(dtype, &ConvertOptions::new())?.view()?)?;
    }
    save(changed, TensorView::from_slice(&shape, &other)?)?;
    Ok(())
}

/// Numbers as they are in a model: near 0, with a standard deviation of 0.02.
fn weights() -> Vec<f32> {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1_u64 << 31) as f32 - 0.5
    };
    // A sum of uniform numbers is nearly normal.
    (0..ELEMENTS).map(|_| (0..4).map(|_| random()).sum::<f32>() * 0.02 * 1.73).collect()
}
