//! The path from a certificate to a trusted root, after RFC 5280.
//!
//! Like the reference, it compares names byte by byte, evaluates no policies and reads no
//! revocation lists. A critical extension that is not obeyed is an error.

use std::time::SystemTime;

use safetensors_core::Result;

use super::Certificate;

/// Between a certificate and its root.
const MAX_ISSUERS: usize = 8;

/// Certificates with the same name could make paths without end.
const MAX_CHECKS: usize = 64;

/// Self-issued certificates of `given` are the trusted roots.
pub(crate) fn verify(
    leaf: &Certificate,
    others: &[Certificate],
    given: &[Certificate],
    at: SystemTime,
) -> Result<()> {
    leaf.check_usage()?;
    // `rustls-webpki` finds paths, too, but refuses a certificate that may itself be an issuer,
    // such as the reference's documentation makes.
    let mut search = Search { others, given, at, checks: 0, problem: None };
    match search.find(&mut vec![leaf]) {
        true => Ok(()),
        false => Err(match search.problem {
            Some((certificate, problem)) => certificate.error(problem),
            None => leaf.error("no root that was given has issued it"),
        }),
    }
}

struct Search<'a> {
    others: &'a [Certificate],
    given: &'a [Certificate],
    at: SystemTime,
    checks: usize,
    problem: Option<(&'a Certificate, String)>,
}

impl<'a> Search<'a> {
    fn find(&mut self, path: &mut Vec<&'a Certificate>) -> bool {
        let Some(&last) = path.last() else { return false };
        if let Err(problem) = check_itself(last, self.at) {
            return self.fails(last, problem);
        }
        // Another key may have signed a certificate that names itself as its issuer. That is no
        // root.
        if self.given.contains(last) && last.is_self_issued() && last.check_signed_by(last).is_ok()
        {
            return true;
        }
        let given = self.given;
        let others = self.others;
        for issuer in given.iter().chain(others) {
            if path.contains(&issuer) || !last.names_issuer(issuer) {
                continue;
            }
            if path.len() > MAX_ISSUERS || self.checks == MAX_CHECKS {
                return self.fails(last, "there are too many certificates above it".to_owned());
            }
            self.checks += 1;
            // Issuers that name themselves do not count, such as after a change of key.
            let below = path[1..].iter().filter(|it| !it.is_self_issued()).count();
            if let Some(problem) = issuer.why_no_issuer(below) {
                self.fails(issuer, format!("{problem}, and another names it as its issuer"));
            } else if let Err(problem) = last.check_signed_by(issuer) {
                self.fails(last, problem);
            } else {
                path.push(issuer);
                if self.find(path) {
                    return true;
                }
                path.pop();
            }
        }
        false
    }

    fn fails(&mut self, certificate: &'a Certificate, problem: String) -> bool {
        self.problem.get_or_insert((certificate, problem));
        false
    }
}

fn check_itself(certificate: &Certificate, at: SystemTime) -> Result<(), String> {
    let validity = certificate.parsed.tbs_certificate().validity();
    let from = validity.not_before;
    let to = validity.not_after;
    if at < from.to_system_time() {
        return Err(format!("it is valid only from {from} on"));
    }
    if at > to.to_system_time() {
        return Err(format!("it has expired; it was valid until {to}"));
    }
    match certificate.unknown_extension() {
        None => Ok(()),
        Some(oid) => Err(format!("it has the critical extension {oid}, which is not supported")),
    }
}

impl Certificate {
    pub(crate) fn not_before(&self) -> SystemTime {
        self.parsed.tbs_certificate().validity().not_before.to_system_time()
    }
}
