//! `safetensors sign` in a command that was built without signatures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Args, Options, OutputForm};
use crate::terminal::stdout::Out;

pub(super) fn sign(_: &Args, _: &mut Out) -> anyhow::Result<ExitCode> {
    Err(missing())
}

pub(in crate::commands) fn verify(
    _: &Options,
    _: &Path,
    _: &[PathBuf],
    _: OutputForm,
    _: &mut Out,
) -> anyhow::Result<ExitCode> {
    Err(missing())
}

fn missing() -> anyhow::Error {
    anyhow::anyhow!(
        "this `safetensors` was built without signatures; \
         `cargo install safetensors-bridge-cli` builds it with them"
    )
}
