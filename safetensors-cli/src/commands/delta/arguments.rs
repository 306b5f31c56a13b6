//! The options of a new delta.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use safetensors_core::Metadata;
use safetensors_core::checkpoint::FilePattern;
use safetensors_delta::{ChecksumFormat, Encoding, Options};

use super::{advise, permit};
use crate::output::existing::Existing;
use crate::output::writing::{Content, Destination, Writing};
use crate::terminal::report::wrong_usage;

/// How a delta is written.
#[derive(Debug, clap::Args)]
pub(super) struct Making {
    /// How the delta stores changed bytes
    #[arg(long, value_name = "ENCODING", value_enum, default_value_t = Encoded::Xor)]
    encoding: Encoded,
    /// The algorithm of the checksums of the changed tensors; blake3 by default
    #[arg(long, value_name = "ALGORITHM", value_enum)]
    checksums: Option<Checksums>,
    /// Write a delta that this program applies, or fail
    ///
    /// slime, also for miles, needs decimal versions and reads all checksums; xxh3-128 is its
    /// default. modelexpress needs xor and adler32. Tensors that are added, removed, reshaped or
    /// cast are then an error. Changed metadata is an error of squash; make skips it with a warning
    #[arg(long = "for", value_name = "PROGRAM", value_enum)]
    reader: Option<DeltaReader>,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoded {
    /// The new bytes XOR the old ones
    Xor,
    /// The positions of the bytes that differ, and the new bytes
    Overwrite,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Checksums {
    Blake3,
    #[value(name = "xxh3-128")]
    Xxh3,
    Adler32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeltaReader {
    Slime,
    Modelexpress,
}

pub(super) struct Unversioned(Options);

impl Making {
    /// Returns `true` if the delta may have parts that only this program reads.
    pub(super) fn is_for_any(&self) -> bool {
        self.reader.is_none()
    }

    pub(super) fn options(&self) -> Unversioned {
        let options = Options::new().encoding(match self.encoding {
            Encoded::Xor => Encoding::Xor,
            Encoded::Overwrite => Encoding::Overwrite,
        });
        let options = match self.reader {
            Some(DeltaReader::Slime) => options.for_slime(),
            Some(DeltaReader::Modelexpress) => options.for_modelexpress(),
            None => options,
        };
        Unversioned(match self.checksums {
            Some(Checksums::Blake3) => options.checksums(ChecksumFormat::Blake3),
            Some(Checksums::Xxh3) => options.checksums(ChecksumFormat::Xxh3),
            Some(Checksums::Adler32) => options.checksums(ChecksumFormat::Adler32),
            None => options,
        })
    }

    /// Permits a directory and sets its options, or prints a dry run.
    pub(super) fn place(
        &self,
        directory: &Path,
        Unversioned(options): Unversioned,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<(Destination, Options)>> {
        Options::new().overwrite(true).check_delta(directory).map_err(advise)?;
        let existing = Existing::of_checkpoint(directory, &FilePattern::default(), &[]);
        let destination = permit(self.writing, existing, &Content::default())?;
        if destination.is_dry_run(out, "a delta")? {
            return Ok(None);
        }
        let options = options.overwrite(destination.overwrites());
        Ok(Some((destination, options)))
    }
}

impl Unversioned {
    pub(super) fn with_metadata(self, new: &Metadata) -> Self {
        Self(self.0.metadata(new.clone()))
    }

    /// Sets the given versions, otherwise the number in the directory's name and the one before it.
    pub(super) fn with_versions(
        self,
        directory: &Path,
        base: Option<&str>,
        to: Option<&str>,
    ) -> anyhow::Result<Self> {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.rsplit_once("_v").map(|(_, number)| number).filter(|it| is_number(it));
        let to = to.or(number).unwrap_or("000001");
        let before = || {
            let number: u64 = to.parse().ok().filter(|_| is_number(to))?;
            Some(format!("{:0width$}", number.checked_sub(1)?, width = to.len()))
        };
        let base = match base {
            Some(base) => base.to_owned(),
            None => before().ok_or_else(|| {
                wrong_usage(format!(
                    "no version comes before {}; name the base with --base-version",
                    crate::terminal::text::short(to)
                ))
            })?,
        };
        Ok(Self(self.0.versions(base, to)))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
