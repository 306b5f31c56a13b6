//! Compares files and checkpoints with listed digests, as `sha256sum --check` does.

use std::io::{self, IsTerminal, Write};
#[cfg(unix)]
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice;

use safetensors_core::framework::in_order;
use safetensors_core::io::FileSource;

use super::{checkpoint_digest, sha256_of};
use crate::input::targets::Target;
use crate::input::{self, address};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, warn};
use crate::terminal::stdout::Out;
use crate::terminal::text;

const MOST: u64 = 100_000_000;

#[derive(Debug, PartialEq)]
struct Line {
    /// Hexadecimal, in lower case.
    digest: String,
    path: PathBuf,
    is_of_checkpoint: bool,
}

pub(super) fn run(lists: &[PathBuf], quiet: bool, out: &mut Out) -> anyhow::Result<ExitCode> {
    let mut lines = Vec::new();
    let mut malformed = 0;
    for list in lists {
        // A character for each byte: a name need not be UTF-8.
        let text: String = input::read_named(list, MOST)?.into_iter().map(char::from).collect();
        let of_list: Vec<_> =
            text.lines().filter(|line| !line.starts_with('#')).map(Line::parse).collect();
        malformed += of_list.iter().filter(|line| line.is_none()).count();
        anyhow::ensure!(
            of_list.iter().any(Option::is_some),
            "{}: not a list of digests and names, as `safetensors digest --files` prints",
            input::name(list)
        );
        lines.extend(of_list.into_iter().flatten());
    }
    let progress = Progress::bytes(0);
    let mut different = 0;
    let mut unread = 0;
    in_order(
        &lines,
        0,
        |line, _: &mut ()| line.found(&progress),
        |line, found| -> anyhow::Result<()> {
            let word = match &found {
                Ok(found) if *found == line.digest => "OK",
                Ok(_) => "FAILED",
                Err(_) => "FAILED open or read",
            };
            different += usize::from(word == "FAILED");
            unread += usize::from(found.is_err());
            progress.suspended(|| {
                if word != "OK" || !quiet {
                    writeln!(out, "{}: {word}", input::name(&line.path))?;
                }
                out.flush()?;
                found.err().iter().for_each(|error| report(format!("{error:#}")));
                Ok(())
            })
        },
    )?;
    drop(progress);
    for (count, thing, rest) in [
        (malformed, "line", "without a digest and a name"),
        (unread, "listed file", "could not be read"),
        (different, "computed digest", "did not match"),
    ] {
        if count > 0 {
            warn(format!("{} {rest}", text::counted(count as u64, thing)));
        }
    }
    Ok(if different + unread == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Line {
    /// Reads a line of `sha256sum`, also with `--tag`, or of this command.
    fn parse(line: &str) -> Option<Self> {
        let unmarked = line.strip_prefix('\\');
        let (digest, name) = match unmarked.unwrap_or(line).strip_prefix("SHA256 (") {
            Some(rest) => rest.rsplit_once(") = ").map(|(name, digest)| (digest, name))?,
            None => {
                let (digest, name) = unmarked.unwrap_or(line).split_once(' ')?;
                (digest, name.strip_prefix([' ', '*'])?)
            }
        };
        let blake3 = digest.strip_prefix("blake3:");
        let digest = blake3.unwrap_or(digest).to_ascii_lowercase();
        let is_digest = digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit());
        let path = if unmarked.is_some() { unescaped(name) } else { name.to_owned() };
        let bytes = path.chars().map(|byte| byte as u8).collect();
        let line = Self { digest, path: path_of(bytes), is_of_checkpoint: blake3.is_some() };
        (is_digest && !name.is_empty()).then_some(line)
    }

    fn found(&self, progress: &Progress) -> anyhow::Result<String> {
        if self.is_of_checkpoint {
            return checkpoint_digest(&Target::named(&self.path).open()?, progress);
        }
        if address::in_path(&self.path).is_none() {
            return sha256_of(&FileSource::open(&self.path)?, &self.path, progress);
        }
        let opened = input::open(&self.path)?;
        match opened.files() {
            [file] => sha256_of(file.safetensors().source(), file.path(), progress),
            _ => anyhow::bail!("{}: expected one file", input::shown(&self.path)),
        }
    }
}

/// Removes the escapes that a backslash at the start of the line announces.
fn unescaped(name: &str) -> String {
    let parts = name.split(r"\\");
    let parts = parts.map(|part| part.replace(r"\n", "\n").replace(r"\r", "\r"));
    parts.collect::<Vec<_>>().join("\\")
}

#[cfg(unix)]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Returns a line that [`Line::parse`] and `sha256sum` read. A terminal shows names escaped.
pub(super) fn line(digest: &str, path: &Path) -> Vec<u8> {
    let name = path.as_os_str().as_encoded_bytes();
    let escaped = name.iter().flat_map(|byte| match byte {
        b'\\' => br"\\",
        b'\n' => br"\n",
        b'\r' => br"\r",
        byte => slice::from_ref(byte),
    });
    let escaped: Vec<u8> = escaped.copied().collect();
    let mark = if escaped == name { "" } else { "\\" };
    let line = [mark.as_bytes(), digest.as_bytes(), b"  ", &escaped].concat();
    if !io::stdout().is_terminal() {
        return [&line[..], b"\n"].concat();
    }
    format!("{}\n", text::printable(&String::from_utf8_lossy(&line))).into_bytes()
}
