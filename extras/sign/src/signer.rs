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
/// [ignored](Signer::ignore) paths, which it names.
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
    /// Reads a private key of P-256, P-384 or P-521 in PEM: PKCS#8 or SEC1.
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

    /// Adds certificates in PEM: the key's first, then its issuers'. Omit the root, which the
    /// verifier has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCertificate`] if the first is not for this key, or not for signatures;
    /// [`ErrorKind::BadCertificates`].
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

    /// Sets the hash of the files: SHA-256 by default.
    #[must_use]
    pub fn hash(mut self, hash: HashAlgorithm) -> Self {
        self.hash = hash;
        self
    }

    /// Omits a file, or a directory with its content. The path is relative to the model, with `/`,
    /// without wildcards.
    #[must_use]
    pub fn ignore(mut self, path: impl Into<String>) -> Self {
        self.ignored.push(path.into());
        self
    }

    /// Follows symbolic links to files. By default they are an error.
    #[must_use]
    pub fn allow_symlinks(mut self, allow_symlinks: bool) -> Self {
        self.allow_symlinks = allow_symlinks;
        self
    }

    /// Replaces an existing signature, even in a cache of the Hub. By default it is an error. Links
    /// and other files are never replaced.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets a callback that gets the bytes hashed and all bytes, from any thread, and can cancel.
    #[must_use]
    pub fn progress(
        mut self,
        progress: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Signs a directory or a file, and writes the signature, completely or not at all.
    ///
    /// # Errors
    ///
    /// [`FileExists`](CoreKind::FileExists), [`ErrorKind::NotASignature`]; [`ErrorKind::NoFiles`];
    /// [`ErrorKind::Link`] and others for entries that cannot be signed; [`ErrorKind::Unfinished`];
    /// [`ErrorKind::ChangedMeanwhile`] if a length, time or name changes. I/O errors.
    pub fn sign(&self, model: impl AsRef<Path>, signature: impl AsRef<Path>) -> Result<Report> {
        self.sign_or_plan(model.as_ref(), signature.as_ref(), false)
    }

    /// Returns the report of [`sign`](Self::sign) without hashing or writing. Fails like `sign`
    /// before hashing.
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

    /// The path must be free, or have a replaceable, unsigned signature.
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

    /// With the signature, if it is in the model.
    fn left_out(&self, signature: Option<String>) -> BTreeSet<String> {
        let ignored = self.ignored.iter().map(|path| path.trim_end_matches('/').to_owned());
        ignored.chain(GIT.map(str::to_owned)).chain(signature).collect()
    }

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

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("key", &self.key.public_key()).finish_non_exhaustive()
    }
}

fn base_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().or_else(|| absolute.file_name());
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn first_difference(before: &Listing, after: &Listing, model: &Path) -> PathBuf {
    let differs = |name: &&String| before.files.get(*name) != after.files.get(*name);
    let name = before.files.keys().chain(after.files.keys()).find(differs);
    name.map_or_else(|| model.to_owned(), |name| model.join(name))
}
