//! Work on one file or address, timed once: `dev/scripts/peers_in_python.py` compares it with
//! programs in Python.

use anyhow::{Context, Result, bail};
use harness::files::checksum;
use harness::sample::sample_of;
use safetensors_bridge::hub::{DownloadOptions, download};
use safetensors_bridge::{Checkpoint, LoadOptions, ReadAt, TensorBuf, remote};
use safetensors_formats::{Options, open};

/// Names and tensors.
type Tensors = Vec<(String, TensorBuf)>;

/// Does the work, and returns its time, its memory, and the proof that it was done: a checksum of
/// tensors, or the folder of a download.
pub(crate) fn run(work: &str, what: &str) -> Result<serde_json::Value> {
    let read = |opened: fn(&str) -> Result<Tensors>| -> Result<_> {
        let (tensors, sample) = sample_of(|watch| watch.time(|| opened(what)))?;
        let tensors = tensors.iter().map(|(name, buf)| (name, buf.bytes()));
        Ok((format!("{:016x}", checksum(tensors)), sample))
    };
    let (found, sample) = match work {
        "load" => read(|path| all(&Checkpoint::open(path)?))?,
        "slice" => read(|path| slice(&Checkpoint::open(path)?))?,
        "load-other" => read(|path| all(&open(path, &Options::new())?))?,
        "first-of-other" => read(|path| first(&open(path, &Options::new())?))?,
        "load-remote" => read(|address| all(&remote::open(address)?))?,
        "download" => {
            let (repo, revision) = what.split_once('@').unwrap_or((what, "main"));
            let options = DownloadOptions::new().revision(revision);
            let (snapshot, sample) =
                sample_of(|watch| Ok(watch.time(|| download(repo, &options))?))?;
            (snapshot.dir().display().to_string(), sample)
        }
        _ => bail!("no such work: {work}"),
    };
    Ok(serde_json::json!({ "seconds": sample.seconds, "growth": sample.growth, "found": found }))
}

fn all<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<Tensors> {
    let names = checkpoint.tensors().map(|tensor| tensor.name().to_owned());
    Ok(names.zip(checkpoint.read_all(&LoadOptions::new())?).collect())
}

fn first<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<Tensors> {
    let first = checkpoint.tensors().next().context("no tensors")?;
    Ok(vec![(first.name().to_owned(), first.read()?)])
}

/// A part of each plane of the first tensor, which has three dimensions.
fn slice<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<Tensors> {
    const PART: std::ops::Range<usize> = 100..356;
    let first = checkpoint.tensors().next().context("no tensors")?;
    Ok(vec![(first.name().to_owned(), first.slice((.., PART, PART))?.read()?)])
}
