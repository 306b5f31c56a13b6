//! Signatures by `safetensors_sign`.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::Result;
use safetensors_core::framework::{NameList, Quoted};
use safetensors_sign::{ErrorKind, HashAlgorithm, Report, Signer, Verifier};
use serde::Serialize;

use super::{Args, Options, OutputForm};
use crate::input;
use crate::output::edit::check_on_disk;
use crate::output::file::{self, Argument};
use crate::terminal::colour::{Colour, paint};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, warn, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

const NAME: &str = "model.sig";

const SIGNATURE: Argument = Argument { name: "--signature FILE", stream: "name a regular file" };

/// The most bytes of a file of keys or certificates.
const MAX_PEM: u64 = 1 << 20;

pub(super) fn sign(args: &Args, out: &mut Out) -> anyhow::Result<ExitCode> {
    check_on_disk(&args.path)?;
    refuse_key_in_model(&args.key, &args.path)?;
    let mut signer = with_path(&args.key, Signer::parse)?;
    if let Some(path) = &args.certificate {
        let mut pem = read_pem(path)?;
        for issuer in &args.certificate_chain {
            pem += &read_pem(issuer)?;
        }
        signer = signer.certificates(&pem).map_err(|error| error.in_path(path))?;
    }
    let signature = args.signature.clone().unwrap_or_else(|| default_signature(&args.path));
    let destination = args.writing.file(&signature, SIGNATURE)?;
    let progress = Progress::bytes(0);
    let follow = progress.following();
    signer = args.ignore.iter().fold(signer, Signer::ignore);
    let signer = signer
        .hash(match &*args.hash {
            "blake3" => HashAlgorithm::Blake3,
            _ => HashAlgorithm::Sha256,
        })
        .allow_symlinks(args.allow_symlinks)
        .overwrite(destination.overwrites())
        .progress(move |done, total| {
            follow(done, total);
            ControlFlow::Continue(())
        });
    if args.writing.dry_run {
        let planned = signer.plan(&args.path, &signature)?;
        let content = format!("{} signed by {}", files(&planned), signer_of(&planned));
        destination.is_dry_run(out, content)?;
        return Ok(ExitCode::SUCCESS);
    }
    let signed = signer
        .sign(&args.path, &signature)
        .map_err(|error| file::advise(error.into(), &signature, 0, SIGNATURE))?;
    drop(progress);
    warn_of_links(&signed);
    let content = format!("{} signed by {}", files(&signed), signer_of(&signed));
    destination.tell(out, content)?;
    Ok(ExitCode::SUCCESS)
}

/// `paths` must be one.
pub(in crate::commands) fn verify(
    args: &Options,
    signature: &Path,
    paths: &[PathBuf],
    shown: OutputForm,
    out: &mut Out,
) -> anyhow::Result<ExitCode> {
    let [model] = paths else {
        return Err(wrong_usage("a signature is for one PATH; name one"));
    };
    check_on_disk(model)?;
    let mut verifier = match (&args.key, &args.certificate_chain[..]) {
        (Some(key), _) => with_path(key, Verifier::with_key)?,
        (None, []) => {
            return Err(wrong_usage(
                "a signature needs a key to be checked: name the signer's by --key, or a root by \
                 --certificate-chain",
            ));
        }
        (None, roots @ [first, ..]) => {
            let pem = roots.iter().map(|path| read_pem(path));
            let pem = pem.collect::<anyhow::Result<String>>()?;
            Verifier::with_roots(&pem).map_err(|error| error.in_path(first))?
        }
    };
    let progress = if shown == OutputForm::Quiet { Progress::hidden() } else { Progress::bytes(0) };
    let follow = progress.following();
    verifier = args.ignore.iter().fold(verifier, Verifier::ignore);
    let verifier = verifier
        .ignore_unsigned_files(args.ignore_unsigned_files)
        .allow_symlinks(args.allow_symlinks)
        .allow_expired_certificates(args.allow_expired_certificates)
        .progress(move |done, total| {
            follow(done, total);
            ControlFlow::Continue(())
        });
    let verified = verifier.verify(model, signature);
    drop(progress);
    if shown == OutputForm::Json {
        json::write(&Document::new(model, signature, &verified), out)?;
        return Ok(if verified.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => match error.other() {
            Some(ErrorKind::FilesDiffer { report }) => {
                show_differences(model, report, args.ignore_unsigned_files);
                return Ok(ExitCode::FAILURE);
            }
            _ => return Err(error.into()),
        },
    };
    warn_of_links(&verified);
    if shown == OutputForm::Line {
        let ok = paint("ok", Colour::Green, &std::io::stdout());
        let unsigned = match verified.unsigned.len() as u64 {
            0 => String::new(),
            some => format!("; {} not", text::counted(some, "other file")),
        };
        let (path, signer) = (text::path(model), signer_of(&verified));
        let left_out = left_out(&verified);
        writeln!(out, "{path}: {ok}, {} signed by {signer}{unsigned}{left_out}", files(&verified))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Unknown facts are null or empty.
#[derive(Default, Serialize)]
struct Document<'a> {
    path: String,
    signature: String,
    verified: bool,
    error: Option<String>,
    signer: Option<&'a str>,
    files: usize,
    bytes: u64,
    changed: &'a [String],
    missing: &'a [String],
    renamed: Vec<Renamed<'a>>,
    unsigned: &'a [String],
    left_out: Vec<LeftOut<'a>>,
    links_outside: &'a [String],
}

#[derive(Serialize)]
struct Renamed<'a> {
    from: &'a str,
    to: &'a str,
}

#[derive(Serialize)]
struct LeftOut<'a> {
    path: &'a str,
    files: usize,
}

impl<'a> Document<'a> {
    fn new(model: &Path, signature: &Path, verified: &'a Result<Report>) -> Self {
        let (path, signature) = (input::name(model), input::name(signature));
        let error = verified.as_ref().err();
        let found = match (verified, error.and_then(|error| error.other())) {
            (Ok(report), _) => Some(report),
            (_, Some(ErrorKind::FilesDiffer { report })) => Some(&**report),
            _ => None,
        };
        let document = Self { path, signature, verified: verified.is_ok(), ..Self::default() };
        let document = Self { error: error.map(ToString::to_string), ..document };
        let Some(found) = found else { return document };
        let renamed = found.renamed.iter().map(|(from, to)| Renamed { from, to });
        let left_out = found.left_out.iter().map(|(path, files)| LeftOut { path, files: *files });
        Self {
            signer: Some(&found.signer),
            files: found.files,
            bytes: found.bytes,
            changed: &found.changed,
            missing: &found.missing,
            renamed: renamed.collect(),
            unsigned: &found.unsigned,
            left_out: left_out.collect(),
            links_outside: &found.links_outside,
            ..document
        }
    }
}

fn show_differences(model: &Path, found: &Report, ignore_unsigned: bool) {
    let model = text::path(model);
    let tell = |name: &str, what: &str| report(format!("{model}: {} {what}", Quoted(name)));
    found.changed.iter().for_each(|name| tell(name, "has changed since it was signed"));
    found.missing.iter().for_each(|name| tell(name, "is missing"));
    for (from, to) in &found.renamed {
        tell(from, &format!("has another name: {}", Quoted(to)));
    }
    if !ignore_unsigned {
        found.unsigned.iter().for_each(|name| tell(name, "is not signed"));
    }
}

fn warn_of_links(found: &Report) {
    for name in &found.links_outside {
        warn(format!("{} is a link that leads out of the model", Quoted(name)));
    }
}

fn files(report: &Report) -> String {
    format!("{}, {}", text::counted(report.files as u64, "file"), text::size(report.bytes))
}

/// Names the unsigned files, which nobody may have looked for.
fn left_out(report: &Report) -> String {
    let (paths, files): (Vec<_>, Vec<_>) = report.left_out.iter().cloned().unzip();
    if paths.is_empty() {
        return String::new();
    }
    let files = text::counted(files.iter().sum::<usize>() as u64, "file");
    format!("; the signature does not cover {}, {files}", NameList(&paths))
}

fn signer_of(report: &Report) -> String {
    text::printable(&report.signer).to_string()
}

fn default_signature(model: &Path) -> PathBuf {
    if model.is_dir() {
        return model.join(NAME);
    }
    let mut name = model.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

// It would be signed and published with the model.
fn refuse_key_in_model(key: &Path, model: &Path) -> anyhow::Result<()> {
    let is_below = match (fs::canonicalize(key), fs::canonicalize(model)) {
        (Ok(key), Ok(model)) => key.starts_with(model),
        // A file that cannot be found is an error later.
        _ => false,
    };
    if is_below {
        anyhow::bail!(
            "{}: the private key is in {}, and would be published with it; move it away",
            text::path(key),
            text::path(model)
        );
    }
    Ok(())
}

fn with_path<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> safetensors_core::Result<T>,
) -> anyhow::Result<T> {
    Ok(parse(&read_pem(path)?).map_err(|error| error.in_path(path))?)
}

/// Reads a text that no error shows.
fn read_pem(path: &Path) -> anyhow::Result<String> {
    let bytes = input::read_named(path, MAX_PEM)?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: not PEM", text::path(path)))
}
