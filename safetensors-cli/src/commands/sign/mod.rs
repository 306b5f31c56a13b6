//! `safetensors sign`: a signature over the files of a model, in the format of `safetensors_sign`.

#[cfg(not(feature = "sign"))]
mod absent;
mod options;
#[cfg(feature = "sign")]
mod present;

use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(not(feature = "sign"))]
pub(super) use absent::verify;
pub(super) use options::Options;
use options::PemPath;
#[cfg(feature = "sign")]
pub(super) use present::verify;

#[cfg(not(feature = "sign"))]
use absent::sign;
#[cfg(feature = "sign")]
use present::sign;

use super::Run;
use crate::output::writing::Writing;
use crate::terminal::stdout::Out;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputForm {
    /// One line if all files are as they were signed.
    Line,
    Quiet,
    Json,
}

/// Sign all files of a directory, for `safetensors verify --signature`.
///
/// The signature is a file with a signed list of every file's digest, in the format of OpenSSF
/// Model Signing, which Python's model-signing reads and writes, too. It does not cover itself, nor
/// .git, .github, .gitattributes and .gitignore at the top. No network is used, and no key is
/// printed.
///
/// Sign complete models: a file that changes at the same time, or a temporary file of a save, is an
/// error, and nothing is written. After a later change, such as `digest --record`, sign again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[cfg_attr(not(feature = "sign"), allow(dead_code, reason = "the arguments are only explained"))]
pub(crate) struct Args {
    /// The directory with all below it, or one file
    #[arg(value_name = "PATH", value_parser = crate::input::address::parser())]
    path: PathBuf,
    /// The private key in PEM: ECDSA with P-256, P-384 or P-521, without a password
    ///
    /// PKCS#8 or SEC1, as `openssl ecparam -genkey` writes it. A key in PATH is refused, because it
    /// would be published with the model
    #[arg(long, value_name = "FILE", value_parser = PemPath, allow_hyphen_values = true)]
    key: PathBuf,
    /// The certificate of the key in PEM; certificates of its issuers may follow it
    #[arg(long, value_name = "FILE", value_parser = PemPath, allow_hyphen_values = true)]
    certificate: Option<PathBuf>,
    /// Certificates between the key's and the root, in PEM, for the signature
    ///
    /// May be repeated
    #[arg(
        long,
        value_name = "FILE",
        value_parser = PemPath,
        allow_hyphen_values = true,
        requires = "certificate"
    )]
    certificate_chain: Vec<PathBuf>,
    /// The signature file; model.sig in the directory by default, or FILE.sig next to one file
    ///
    /// All programs share a snapshot in the Hub's cache: name a file elsewhere
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
    /// How files are hashed
    #[arg(long, value_parser = ["sha256", "blake3"], default_value = "sha256")]
    hash: String,
    /// Skip a file, or a directory with all below it, relative to PATH
    ///
    /// May be repeated. The signature records it, and `verify` ignores it
    #[arg(long, value_name = "PATH")]
    ignore: Vec<String>,
    /// Follow symbolic links to files, as in a cache of the Hub
    ///
    /// Without it, a link is an error. A link to a directory always is
    #[arg(long)]
    allow_symlinks: bool,
    #[command(flatten)]
    writing: Writing,
}

const EXAMPLES: &str = "\
Examples:
  safetensors sign model/ --key key.pem
  safetensors sign model/ --key key.pem --certificate signer.pem
  safetensors sign model/ --key key.pem --signature model.sig --ignore logs
  openssl ecparam -name prime256v1 -genkey -noout -out key.pem
  openssl ec -in key.pem -pubout -out key.pub

Exit codes: 0 signed, 1 the model or the key cannot be used, or writing failed, 2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        sign(self, out)
    }
}
