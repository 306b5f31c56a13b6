//! `safetensors manifest`: the places of tensors, for readers of Zarr.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::ErrorKind;
use safetensors_formats::{Result, kerchunk};

use super::Run;
use crate::input::{self, Input, address, other};
use crate::output::writing::{Destination, Writing};
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Write the places of tensors, as references of kerchunk, for readers of Zarr.
///
/// Zarr, xarray and VirtualiZarr then read the tensors in place, also in part and from a bucket.
/// Only headers are read, and no data is copied. The manifest has absolute paths, or addresses
/// without their query, which may hold a signature. Write it again after a file has changed. / in a
/// name makes groups. A name that Zarr does not allow is an error, such as a/b next to a.
///
/// BF16, floats of 8 bits and packed dtypes, which NumPy lacks, are unsigned integers or bytes,
/// with the attribute safetensors_dtype.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The file to write; standard output, or -, by default
    #[arg(short, long, value_name = "FILE", value_parser = address::parser())]
    output: Option<PathBuf>,
    /// The size of a chunk in bytes, the least that a reader reads of a large tensor
    ///
    /// Tensors are cut into equal parts of their first dimension. So chunks can be smaller, and
    /// larger where that dimension cannot be divided
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 16 << 20,
        value_parser = input::integer::<u64>(1..=u64::MAX)
    )]
    chunk: u64,
    #[command(flatten)]
    writing: Writing,
}

const EXAMPLES: &str = "\
Examples:
  safetensors manifest run.safetensors -o run.json
  safetensors manifest s3://bucket/model -o model.json
  safetensors manifest checkpoint/ --chunk 1000000 | jq '.refs[\".zattrs\"]'

Exit codes: 0 written, 1 a tensor or file cannot be in a manifest, or reading or writing failed,
2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if input::is_stdin(self.input.path()) {
            return Err(wrong_usage("cannot make a manifest from standard input"));
        }
        let checkpoint = self.input.open()?;
        if other::is_in(checkpoint.files()) || input::is_in_parts(&checkpoint) {
            anyhow::bail!(
                "{}: its tensors are not stored whole in safetensors files; `safetensors convert` \
                 makes such files",
                self.input.name()
            );
        }
        let mut manifest = kerchunk::manifest(&checkpoint, self.chunk, location)?;
        let size = text::size(manifest.len() as u64);
        let tensors = text::counted(checkpoint.len() as u64, "tensor");
        let output = self.output.as_deref().unwrap_or(Path::new("-"));
        let destination = self.writing.output(output, &checkpoint)?;
        if destination.is_none() {
            manifest.push('\n');
        }
        Destination::put(destination, out, manifest.as_bytes(), format!("{tensors}, {size}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

// The path of a web address has been decoded, and is encoded again. Readers of buckets and of the
// Hub take names as they are.
fn as_asked_for(address: &str) -> String {
    let of_web = address.split_once("://").filter(|_| address::is_web(address));
    let Some((scheme, rest)) = of_web else { return address.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let encoded = path.bytes().map(|byte| match byte {
        b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    format!("{scheme}://{host}{}", encoded.collect::<String>())
}

/// Returns the address, or the absolute path.
fn location(path: &Path) -> Result<String> {
    if let Some(address) = address::in_path(path) {
        return Ok(as_asked_for(address));
    }
    let is_file = std::fs::metadata(path).map_err(ErrorKind::Io)?.is_file();
    let absolute = std::path::absolute(path).map_err(ErrorKind::Io)?;
    match absolute.into_os_string().into_string() {
        Ok(path) if is_file => Ok(path),
        Ok(_) => Err(ErrorKind::NotAFile { found: "a special file" }.into()),
        Err(_) => Err(ErrorKind::Io(std::io::ErrorKind::InvalidFilename.into()).into()),
    }
}
