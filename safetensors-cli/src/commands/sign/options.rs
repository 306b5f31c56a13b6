//! [`Options`]: the signature of `safetensors verify`, and its trusted keys; [`PemPath`].

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::error::ErrorKind;

/// The path of a key or of certificates.
// A user may pass the text of a private key instead. It must not appear in an error, which a log
// may keep.
#[derive(Clone)]
pub(super) struct PemPath;

impl TypedValueParser for PemPath {
    type Value = PathBuf;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<PathBuf, clap::Error> {
        let text = value.to_string_lossy();
        if text.contains("-----BEGIN") || text.contains('\n') {
            let argument = argument.map(ToString::to_string).unwrap_or_default();
            let problem = format!("{argument} takes the path of a file, not its text\n");
            return Err(clap::Error::raw(ErrorKind::ValueValidation, problem).with_cmd(command));
        }
        PathBufValueParser::new().parse_ref(command, argument, value)
    }
}

/// The options of `safetensors verify` that are about a signature.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "sign"), allow(dead_code, reason = "the arguments are only explained"))]
pub(in crate::commands) struct Options {
    /// Compare the files at PATH with a signature by `safetensors sign` or Python's model-signing
    ///
    /// First the signature is verified, by --key or --certificate-chain. Then each signed file must
    /// be there, unchanged, and no other file. Nothing else is checked. Keyless signatures of
    /// Sigstore are refused. Until the model is loaded, nobody else may be able to write to the
    /// files
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["strict", "format", "digests"]
    )]
    pub(in crate::commands) signature: Option<PathBuf>,
    /// With --signature: the signer's public key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        value_parser = PemPath,
        allow_hyphen_values = true,
        requires = "signature",
        conflicts_with = "certificate_chain"
    )]
    pub(in crate::commands) key: Option<PathBuf>,
    /// With --signature: the root certificate behind the signer's, in PEM
    ///
    /// May be repeated. Certificates that are no roots help to reach one. A root may have issued
    /// certificates to many, so compare the printed name
    #[arg(
        long,
        value_name = "FILE",
        value_parser = PemPath,
        allow_hyphen_values = true,
        requires = "signature"
    )]
    pub(in crate::commands) certificate_chain: Vec<PathBuf>,
    /// With --certificate-chain: accept expired ones that were valid when the key's became valid
    ///
    /// A signature has no date that could be trusted
    #[arg(long, requires = "certificate_chain")]
    pub(in crate::commands) allow_expired_certificates: bool,
    /// With --signature: ignore unsigned files at and below this path, relative to PATH
    ///
    /// May be repeated
    #[arg(long, value_name = "PATH", requires = "signature")]
    pub(in crate::commands) ignore: Vec<String>,
    /// With --signature: ignore all unsigned files
    #[arg(long, requires = "signature")]
    pub(in crate::commands) ignore_unsigned_files: bool,
    /// With --signature: follow symbolic links to files, as in a cache of the Hub
    #[arg(long, requires = "signature")]
    pub(in crate::commands) allow_symlinks: bool,
}
