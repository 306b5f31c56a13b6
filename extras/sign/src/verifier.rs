//! [`Verifier`]: compares the files of a model with a signature.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use safetensors_core::{Error, Result};

use crate::bundle::{Bundle, Material, message};
use crate::certificate::{self, Certificate};
use crate::error::ErrorKind;
use crate::files::{File, Rules, list, name_in};
use crate::hash::{Callback, hash_files};
use crate::key::PublicKey;
use crate::names::{GIT, SINGLE_FILE, is_below, is_plain};
use crate::pem::refuse_pem;
use crate::report::Report;
use crate::statement::{Digests, Manifest};

/// Verifies the signature of a model with a key, or with trusted certificates.
///
/// A result holds for the bytes on disk at that time. A later load reads the files again, so nobody
/// else may be able to write them.
pub struct Verifier {
    trust: Trust,
    ignored: Vec<String>,
    ignore_unsigned: bool,
    allow_symlinks: bool,
    allow_expired: bool,
    progress: Option<Callback>,
}

enum Trust {
    Key(PublicKey),
    Roots(Vec<Certificate>),
}

impl Verifier {
    /// Trusts a public key of P-256, P-384 or P-521 in PEM.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadKey`].
    pub fn with_key(pem: &str) -> Result<Self> {
        Ok(Self::new(Trust::Key(PublicKey::parse(pem)?)))
    }

    /// Trusts every certificate that leads to one of these roots, in PEM. Certificates that do not
    /// sign themselves are not trusted, but can complete a path.
    ///
    /// Compare [`Report::signer`] with the expected name: a root may have issued certificates to
    /// many.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCertificates`].
    pub fn with_roots(pem: &str) -> Result<Self> {
        let certificates = Certificate::parse_all(pem)?;
        if !certificates.iter().any(Certificate::is_self_issued) {
            let problem = "none of them is a root, which signs itself".to_owned();
            return Err(ErrorKind::BadCertificates { problem }.into());
        }
        Ok(Self::new(Trust::Roots(certificates)))
    }

    fn new(trust: Trust) -> Self {
        Self {
            trust,
            ignored: Vec::new(),
            ignore_unsigned: false,
            allow_symlinks: false,
            allow_expired: false,
            progress: None,
        }
    }

    /// Allows unsigned files at a path and below it, in addition to the paths in the signature. It
    /// is relative to the model, with `/`. Signed files are always compared.
    #[must_use]
    pub fn ignore(mut self, path: impl Into<String>) -> Self {
        self.ignored.push(path.into());
        self
    }

    /// Allows unsigned files everywhere. By default they are an error.
    #[must_use]
    pub fn ignore_unsigned_files(mut self, ignore: bool) -> Self {
        self.ignore_unsigned = ignore;
        self
    }

    /// Follows symbolic links to files, regardless of the signer. By default they are an error.
    #[must_use]
    pub fn allow_symlinks(mut self, allow_symlinks: bool) -> Self {
        self.allow_symlinks = allow_symlinks;
        self
    }

    /// Accepts certificates that were valid when the key's certificate became valid, like the
    /// reference. By default they must be valid now.
    ///
    /// A signature proves no date, so anyone with an expired key can then still sign.
    #[must_use]
    pub fn allow_expired_certificates(mut self, allow: bool) -> Self {
        self.allow_expired = allow;
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

    /// Verifies a signature file, and compares a directory or a file with it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FilesDiffer`] with a report; [`ErrorKind::WrongSignature`],
    /// [`ErrorKind::OtherKey`], [`ErrorKind::BadCertificate`]; [`ErrorKind::BadBundle`],
    /// [`ErrorKind::Keyless`] and others for an unusable file. I/O errors.
    pub fn verify(&self, model: impl AsRef<Path>, signature: impl AsRef<Path>) -> Result<Report> {
        let model = model.as_ref();
        let signature = signature.as_ref();
        [model, signature].into_iter().try_for_each(refuse_pem)?;
        let (manifest, signer) = Bundle::read(signature)
            .and_then(|bundle| self.open(&bundle))
            .map_err(|error| error.in_path(signature))?;
        let report = self.compare(model, &manifest, name_in(model, signature))?;
        let report = Report { signer, files: manifest.files.len(), ..report };
        if report.has_all() && (self.ignore_unsigned || report.unsigned.is_empty()) {
            return Ok(report);
        }
        Err(Error::from(ErrorKind::FilesDiffer { report: Box::new(report) }).in_path(model))
    }

    fn open(&self, bundle: &Bundle) -> Result<(Manifest, String)> {
        let (key, signer) = self.key(&bundle.material)?;
        if !key.is_signed(&message(&bundle.payload), key.hash(), &bundle.signature) {
            return Err(bundle.wrong_signature());
        }
        Ok((Manifest::parse(&bundle.payload)?, signer))
    }

    fn key(&self, material: &Material) -> Result<(PublicKey, String)> {
        match (&self.trust, material) {
            (Trust::Key(key), Material::Key(named)) => {
                let expected = key.hint()?;
                if let Some(found) = named.clone().filter(|found| *found != expected) {
                    return Err(ErrorKind::OtherKey { expected, found }.into());
                }
                Ok((key.clone(), format!("key {expected}")))
            }
            (Trust::Roots(given), Material::Certificates { leaf, issuers }) => {
                let leaf = Certificate::from_der(leaf)?;
                let issuers = issuers.iter().map(|der| Certificate::from_der(der));
                let issuers = issuers.collect::<Result<Vec<_>>>()?;
                let at = if self.allow_expired { leaf.not_before() } else { SystemTime::now() };
                certificate::verify(&leaf, &issuers, given, at)?;
                Ok((leaf.key()?, format!("certificate {}", leaf.subject())))
            }
            (Trust::Key(_), _) => {
                Err(ErrorKind::OtherMethod { given: "a key", found: "certificates" }.into())
            }
            (Trust::Roots(_), _) => {
                Err(ErrorKind::OtherMethod { given: "certificates", found: "a key" }.into())
            }
        }
    }

    /// `own` is the name of the signature.
    fn compare(&self, model: &Path, manifest: &Manifest, own: Option<String>) -> Result<Report> {
        let signed = &manifest.files;
        let ignored = || self.ignored.iter().map(String::as_str).chain(GIT);
        let mut left_out: Vec<_> = manifest.ignored.iter().map(|it| (it.clone(), 0)).collect();
        left_out.sort_unstable();
        left_out.dedup();
        left_out.retain(|(path, _)| {
            let path = path.trim_end_matches('/');
            is_plain(path) && own.as_deref() != Some(path) && ignored().all(|it| it != path)
        });
        // Everything below a path is between `path/` and `path0`, since `0` follows `/`.
        let is_signed = |name: &str| {
            let below = format!("{name}/")..format!("{name}0");
            signed.contains_key(name) || signed.range(below).next().is_some()
        };
        let is_left_out = |name: &str| {
            own.as_deref() == Some(name)
                || (!is_signed(name) && ignored().any(|path| is_below(name, path)))
        };
        let rules = Rules {
            allow_symlinks: self.allow_symlinks,
            is_left_out: &is_left_out,
            is_tolerated: &|name| {
                !is_signed(name)
                    && (self.ignore_unsigned
                        || left_out.iter().any(|(path, _)| is_below(name, path)))
            },
        };
        let mut listing = list(model, &rules)?;
        adopt_single_name(&mut listing.files, signed, model);
        let mut report = self.compare_signed(&listing.files, manifest)?;
        let links = listing.links_outside.into_iter();
        report.links_outside = links.filter(|name| signed.contains_key(name)).collect();
        for name in listing.files.keys().filter(|name| !signed.contains_key(*name)) {
            match left_out.iter_mut().find(|(path, _)| is_below(name, path)) {
                Some((_, count)) => *count += 1,
                None => report.unsigned.push(name.clone()),
            }
        }
        report.left_out = left_out;
        self.find_renamed(&listing.files, manifest, &mut report)?;
        Ok(report)
    }

    fn compare_signed(
        &self,
        found: &BTreeMap<String, File>,
        manifest: &Manifest,
    ) -> Result<Report> {
        let mut report = Report::default();
        let mut names = Vec::new();
        let mut files = Vec::new();
        for name in manifest.files.keys() {
            match found.get(name) {
                Some(file) => {
                    names.push(name);
                    files.push(file);
                    report.bytes += file.len;
                }
                None => report.missing.push(name.clone()),
            }
        }
        let digests = hash_files(&files, manifest.hash, self.progress.as_ref())?;
        let differs = |(name, digest): &(&String, [u8; 32])| manifest.files[*name] != *digest;
        let changed = names.into_iter().zip(digests).filter(differs);
        report.changed = changed.map(|(name, _)| name.clone()).collect();
        Ok(report)
    }

    /// Hashes the unsigned files only if something is missing.
    fn find_renamed(
        &self,
        found: &BTreeMap<String, File>,
        manifest: &Manifest,
        report: &mut Report,
    ) -> Result<()> {
        if report.missing.is_empty() || report.unsigned.is_empty() {
            return Ok(());
        }
        let files: Vec<_> = report.unsigned.iter().map(|name| &found[name]).collect();
        let digests = hash_files(&files, manifest.hash, self.progress.as_ref())?;
        pair_renamed(&manifest.files, digests, report);
        Ok(())
    }
}

/// Looks at each file once: there may be a million of either.
fn pair_renamed(signed: &Digests, digests: Vec<[u8; 32]>, report: &mut Report) {
    let mut unsigned: Vec<_> = report.unsigned.drain(..).map(Some).collect();
    let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
    for (at, digest) in digests.into_iter().enumerate().rev() {
        alike.entry(digest).or_default().push(at);
    }
    report.missing.retain(|name| {
        let first = alike.get_mut(&signed[name]).and_then(Vec::pop);
        let Some(found) = first.and_then(|at| unsigned[at].take()) else { return true };
        report.renamed.push((name.clone(), found));
        false
    });
    report.unsigned = unsigned.into_iter().flatten().collect();
}

/// In its signature, a single file is `.`, or has its own name.
fn adopt_single_name(files: &mut BTreeMap<String, File>, signed: &Digests, model: &Path) {
    let name = model.file_name().and_then(|name| name.to_str()).unwrap_or(SINGLE_FILE);
    if signed.contains_key(name)
        && signed.len() == 1
        && let Some(file) = files.remove(SINGLE_FILE)
    {
        files.insert(name.to_owned(), file);
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trust = match &self.trust {
            Trust::Key(_) => "a key",
            Trust::Roots(_) => "roots",
        };
        f.debug_struct("Verifier").field("trust", &trust).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: usize) -> [u8; 32] {
        std::array::from_fn(|at| if at < 8 { (number / 3).to_le_bytes()[at] } else { 0 })
    }

    #[test]
    fn a_hundred_thousand_renamed_files_are_paired_in_order() {
        // Both in the order of their names, the present ones behind one that is unsigned.
        let count = 100_002;
        let [old, new] = ["old", "new"].map(|kind| move |number| format!("{kind}-{number:06}"));
        let signed = (0..count).map(|number| (old(number), digest(number))).collect();
        let mut report = Report {
            missing: (0..count).map(old).collect(),
            unsigned: (0..count).map(new).chain(["other".to_owned()]).collect(),
            ..Report::default()
        };
        let digests = (0..count).map(digest).chain([[7; 32]]).collect();
        pair_renamed(&signed, digests, &mut report);
        assert!(report.renamed.iter().cloned().eq((0..count).map(|at| (old(at), new(at)))));
        assert!(report.missing.is_empty());
        assert_eq!(report.unsigned, ["other"]);

        // Of equal files, the first is taken, and a file without counterpart stays.
        let mut report = Report {
            missing: vec![old(0), old(1), old(5)],
            unsigned: vec!["a".into(), "b".into(), "c".into()],
            ..Report::default()
        };
        pair_renamed(&signed, vec![digest(9), digest(2), digest(2)], &mut report);
        assert_eq!(report.renamed, [(old(0), "b".into()), (old(1), "c".into())]);
        assert_eq!((report.missing, report.unsigned), (vec![old(5)], vec!["a".into()]));
    }
}
