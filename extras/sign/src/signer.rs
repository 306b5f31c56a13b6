//! [`Signer`]: signs the files of a model.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors_core::framework::is_temporary_name;
use safetensors_core::save::AtomicFile;
use safetensors_core::{Error, ErrorKind as CoreKind, Result, SaveOptions};

use crate::bundle::{Bundle, Material, message};
use crate::certificate::Certificate;
use crate::error::ErrorKind;
use crate::files::{Listing, Rules, list, name_in};
use crate::hash::{Callback, HashAlgorithm, hash_files};
use crate::key::PrivateKey;
use crate::names::{GIT, SINGLE_FILE, is_below, is_plain};
use crate::pem::refuse_pem;
use crate::report::Report;
use crate::statement::Manifest;

/// Signs the files of a model with a key, or with a key and its certificates.
///
/// The signature omits itself, `.git`, `.github`, `.gitattributes` and `.gitignore` at the top, and
/// the paths that are [ignored](Signer::ignore). It names the omitted paths.
///
/// Verifiers look at the bytes on the disk. If a directory holds a delta, or some shards of a
/// checkpoint, the signature covers these files and not the model made from them.
pub struct Signer {
    key: PrivateKey,
    certificates: Vec<Certificate>,
    hash: HashAlgorithm,
    ignored: Vec<String>,
    allow_symlinks: bool,
    overwrite: bool,
    progress: Option<Callback>,
}

impl Signer {
    /// Reads a private key of the curve P-256, P-384 or P-521 in PEM: PKCS#8 or SEC1.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EncryptedKey`] if it has a password; [`ErrorKind::BadKey`].
    pub fn parse(pem: &str) -> Result<Self> {
        Ok(Self {
            key: PrivateKey::parse(pem)?,
            certificates: Vec::new(),
            hash: HashAlgorithm::default(),
            ignored: Vec::new(),
            allow_symlinks: false,
            overwrite: false,
            progress: None,
        })
    }

    /// Puts certificates in PEM into the signature: first the key's, then its issuers'. A verifier
    /// needs only their root, so the root itself is better omitted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCertificate`] if the first does not belong to the key, or is not meant for
    /// signatures; [`ErrorKind::BadCertificates`].
    pub fn certificates(mut self, pem: &str) -> Result<Self> {
        self.certificates = Certificate::parse_all(pem)?;
        if let [leaf, ..] = &self.certificates[..] {
            leaf.check_usage()?;
            if leaf.key()? != self.key.public_key() {
                let subject = leaf.subject();
                let problem = "it is of another key".to_owned();
                return Err(ErrorKind::BadCertificate { subject, problem }.into());
            }
        }
        Ok(self)
    }

    /// Sets how files are hashed: SHA-256 by default.
    #[must_use]
    pub fn hash(mut self, hash: HashAlgorithm) -> Self {
        self.hash = hash;
        self
    }

    /// Omits a file, or a directory with everything below it. The path is relative to the model,
    /// with `/` between its parts, and has no wildcards.
    #[must_use]
    pub fn ignore(mut self, path: impl Into<String>) -> Self {
        self.ignored.push(path.into());
        self
    }

    /// Sets whether symbolic links to files are followed. By default one is an error.
    #[must_use]
    pub fn allow_symlinks(mut self, allow_symlinks: bool) -> Self {
        self.allow_symlinks = allow_symlinks;
        self
    }

    /// Sets whether an existing signature is replaced, also one in a cache of the Hub. By default
    /// it is an error. Links and files that are no signatures are never replaced.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets a callback that gets the bytes hashed and all bytes, from any thread. It can cancel.
    #[must_use]
    pub fn progress(
        mut self,
        progress: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Signs a directory, or one file, and writes the signature. The file is complete or does not
    /// appear; it may be in the directory.
    ///
    /// The directory must not change at the same time. A file that does, by its length, its time or
    /// its name, is an error.
    ///
    /// # Errors
    ///
    /// [`FileExists`](CoreKind::FileExists), [`ErrorKind::NotASignature`]; [`ErrorKind::NoFiles`];
    /// [`ErrorKind::Link`] and others for entries that cannot be signed; [`ErrorKind::Unfinished`];
    /// [`ErrorKind::ChangedMeanwhile`]. I/O errors.
    pub fn sign(&self, model: impl AsRef<Path>, signature: impl AsRef<Path>) -> Result<Report> {
        self.sign_or_plan(model.as_ref(), signature.as_ref(), false)
    }

    /// Returns the report of [`sign`](Self::sign) without hashing or writing a file.
    ///
    /// # Errors
    ///
    /// As for `sign`, before it hashes.
    pub fn plan(&self, model: impl AsRef<Path>, signature: impl AsRef<Path>) -> Result<Report> {
        self.sign_or_plan(model.as_ref(), signature.as_ref(), true)
    }

    fn sign_or_plan(&self, model: &Path, signature: &Path, is_plan: bool) -> Result<Report> {
        [model, signature].into_iter().try_for_each(refuse_pem)?;
        if let Some(bad) = self.ignored.iter().find(|path| !is_plain(path.trim_end_matches('/'))) {
            return Err(ErrorKind::UnsafeName { found: bad.clone() }.into());
        }
        let ignored = self.left_out(name_in(model, signature));
        let is_left_out = |name: &str| ignored.iter().any(|path| is_below(name, path));
        let rules = Rules {
            allow_symlinks: self.allow_symlinks,
            is_left_out: &is_left_out,
            is_tolerated: &|_| false,
        };
        let options = SaveOptions::new()
            .overwrite(self.overwrite)
            .replace_cached(self.overwrite)
            .replace_read_only(self.overwrite);
        if !is_plan {
            // Removes leftovers of a process that was killed here before. Errors come back below.
            _ = AtomicFile::create(signature, &options);
        }
        let listing = list(model, &rules)?;
        self.check_replaced(signature, &listing)?;
        let (material, report) = self.report(model, &listing)?;
        if is_plan {
            return Ok(report);
        }
        let ignored_names = ignored.iter().cloned().collect();
        let bundle = self.bundle(model, &listing, material, ignored_names)?;
        let after = list(model, &rules)?;
        if after != listing {
            let changed = Error::from(ErrorKind::ChangedMeanwhile);
            return Err(changed.in_path(first_difference(&listing, &after, model)));
        }
        self.check_replaced(signature, &after)?;
        let mut file = AtomicFile::create(signature, &options)?;
        file.write_all(bundle.as_bytes()).map_err(|error| Error::from(error).in_path(signature))?;
        file.commit()?;
        Ok(report)
    }

    /// Fails unless the path is free, or has a signature that may be replaced and is not signed.
    fn check_replaced(&self, signature: &Path, listing: &Listing) -> Result<()> {
        let Ok(found) = signature.symlink_metadata() else { return Ok(()) };
        let error = |kind: Error| Err(kind.in_path(signature));
        if !self.overwrite {
            return error(CoreKind::FileExists.into());
        }
        // By another name: a link to it, or letters of another case.
        let is_signed = || {
            let signature = signature.canonicalize().ok();
            listing.files.values().any(|file| file.path.canonicalize().ok() == signature)
        };
        if !found.is_file() || Bundle::read(signature).is_err() || is_signed() {
            return error(ErrorKind::NotASignature.into());
        }
        Ok(())
    }

    /// Returns the omitted paths, with the signature if it is in the model.
    fn left_out(&self, signature: Option<String>) -> BTreeSet<String> {
        let ignored = self.ignored.iter().map(|path| path.trim_end_matches('/').to_owned());
        ignored.chain(GIT.map(str::to_owned)).chain(signature).collect()
    }

    /// Returns the description of the key in the signature, and the report. Fails for files that
    /// cannot be signed.
    fn report(&self, model: &Path, listing: &Listing) -> Result<(Material, Report)> {
        if listing.files.is_empty() {
            return Err(Error::from(ErrorKind::NoFiles).in_path(model));
        }
        let is_temporary =
            |name: &str| name.split('/').any(|part| is_temporary_name(part.as_ref()));
        if let Some((_, file)) = listing.files.iter().find(|(name, _)| is_temporary(name)) {
            return Err(Error::from(ErrorKind::Unfinished).in_path(&file.path));
        }
        let (material, signer) = self.material()?;
        let report = Report {
            signer,
            files: listing.files.len(),
            bytes: listing.files.values().map(|file| file.len).sum(),
            links_outside: listing.links_outside.clone(),
            ..Report::default()
        };
        Ok((material, report))
    }

    /// The text of the signature.
    fn bundle(
        &self,
        model: &Path,
        listing: &Listing,
        material: Material,
        ignored: Vec<String>,
    ) -> Result<String> {
        let files: Vec<_> = listing.files.values().collect();
        let digests = hash_files(&files, self.hash, self.progress.as_ref())?;
        let is_single = listing.files.contains_key(SINGLE_FILE);
        let manifest = Manifest {
            hash: self.hash,
            ignored: if is_single { Vec::new() } else { ignored },
            files: listing.files.keys().cloned().zip(digests).collect(),
        };
        let payload = manifest.to_json(base_name(model), self.allow_symlinks)?;
        let signature = self.key.sign(&message(&payload))?;
        let text = Bundle { material, payload, signature }.to_json()?;
        // Nothing is written that no verifier would read.
        Manifest::parse(&Bundle::parse(text.as_bytes())?.payload)?;
        Ok(text)
    }

    /// Returns the descriptions of the key for the signature and for a report.
    fn material(&self) -> Result<(Material, String)> {
        if let [leaf, ..] = &self.certificates[..] {
            let der = self.certificates.iter().map(|it| it.der().to_vec()).collect();
            return Ok((Material::certificates(der)?, format!("certificate {}", leaf.subject())));
        }
        let hint = self.key.public_key().hint()?;
        let signer = format!("key {hint}");
        Ok((Material::Key(Some(hint)), signer))
    }
}

/// Without the private key.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("key", &self.key.public_key()).finish_non_exhaustive()
    }
}

/// Returns the last part of a path, also of a path such as `..`.
fn base_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().or_else(|| absolute.file_name());
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The path of a file that one listing has otherwise than another.
fn first_difference(before: &Listing, after: &Listing, model: &Path) -> PathBuf {
    let differs = |name: &&String| before.files.get(*name) != after.files.get(*name);
    let name = before.files.keys().chain(after.files.keys()).find(differs);
    name.map_or_else(|| model.to_owned(), |name| model.join(name))
}
