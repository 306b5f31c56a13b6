//! Certificates: which chains lead to a root, and which do not.

use safetensors_sign::{Error, ErrorKind, Report, Signer, Verifier};

use super::{MODEL, fixture, kind, model, text};

fn verify(roots: &str, signature: &str) -> Result<Report, Error> {
    Verifier::with_roots(&text(roots))?.verify(model().path(), fixture(signature))
}

#[test]
fn signatures_of_the_reference_verify() {
    for (roots, signature, subject) in [
        ("root.pem", "digital.sig", "certificate CN=signer"),
        ("root.pem", "code.sig", "certificate CN=signer"),
        // It has the name of its issuer, and could be an issuer itself.
        ("rsa-root.pem", "rsa.sig", "certificate CN=rsa root"),
    ] {
        let report = verify(roots, signature).unwrap();
        assert_eq!((report.files, &*report.signer), (MODEL.len(), subject), "{signature}");
    }
}

#[test]
fn own_signatures_verify() {
    let model = model();
    let signature = model.path().join("model.sig");
    let signer = Signer::parse(&text("p256.pem")).unwrap();
    let signed = signer.certificates(&text("digital.chain.pem")).unwrap();
    let signed = signed.sign(model.path(), &signature).unwrap();
    let roots = Verifier::with_roots(&text("root.pem")).unwrap();
    assert_eq!(roots.verify(model.path(), &signature).unwrap(), signed);
    // The issuer between them may come from the user, in any order.
    let leaf = text("digital.chain.pem")
        .split_inclusive("-----END CERTIFICATE-----")
        .next()
        .unwrap()
        .to_owned();
    let signer = Signer::parse(&text("p256.pem")).unwrap().certificates(&leaf).unwrap();
    signer.overwrite(true).sign(model.path(), &signature).unwrap();
    let error = roots.verify(model.path(), &signature).unwrap_err().to_string();
    assert!(error.contains("no root that was given has issued it"), "{error}");
    let both = Verifier::with_roots(&(text("middle.pem") + &text("root.pem"))).unwrap();
    assert_eq!(both.verify(model.path(), &signature).unwrap(), signed);
}

#[test]
fn chains_that_lead_to_no_root_are_refused() {
    for (roots, signature, problem) in [
        ("rsa-root.pem", "digital.sig", "no root that was given has issued it"),
        ("root.pem", "usage.sig", "its key usage is not digitalSignature"),
        // Its other usage is right.
        ("root.pem", "commitment.sig", "its key usage is not digitalSignature"),
        ("root.pem", "server.sig", "its extended key usage is not codeSigning"),
        ("root.pem", "for-servers.sig", "CN=for servers\": its extended key usage is not"),
        ("root.pem", "expired.sig", "it has expired; it was valid until 2021-01-01"),
        ("old-root.pem", "old.sig", "it has expired"),
        ("root.pem", "not-ca.sig", "it is not an issuer's certificate"),
        ("root.pem", "too-long.sig", "it allows fewer issuers below it"),
        ("root.pem", "forged.sig", "its issuer did not sign it"),
        ("root.pem", "critical.sig", "the critical extension 2.5.29.30"),
    ] {
        let error = verify(roots, signature).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::BadCertificate { .. }), "{signature}: {error}");
        assert!(error.to_string().contains(problem), "{signature}: {error}");
    }
}

#[test]
fn expired_certificates_can_be_allowed() {
    for (roots, signature) in [("root.pem", "expired.sig"), ("old-root.pem", "old.sig")] {
        let roots = Verifier::with_roots(&text(roots)).unwrap().allow_expired_certificates(true);
        let report = roots.verify(model().path(), fixture(signature)).unwrap();
        assert_eq!(report.signer, "certificate CN=signer");
        // Nothing else is allowed by that.
        let error = roots.verify(model().path(), fixture("usage.sig")).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::BadCertificate { .. }), "{error}");
    }
}

#[test]
fn only_certificates_that_sign_themselves_are_roots() {
    for name in ["middle.pem", "digital.chain.pem"] {
        let error = Verifier::with_roots(&text(name)).unwrap_err().to_string();
        assert!(error.contains("none of them is a root"), "{name}: {error}");
    }
    // It names itself as its issuer, but another key has signed it.
    let leaf = Verifier::with_roots(&text("rsa.chain.pem")).unwrap();
    let error = leaf.verify(model().path(), fixture("rsa.sig")).unwrap_err().to_string();
    assert!(error.contains("no root that was given has issued it"), "{error}");
    for name in ["p256.pub", "p256.sig"] {
        let error = Verifier::with_roots(&text(name)).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::BadCertificates { .. }), "{error}");
    }
}

#[test]
fn more_certificates_than_a_verifier_reads_are_not_signed_with() {
    let model = model();
    let signature = model.path().join("model.sig");
    let chain = text("digital.chain.pem") + &text("middle.pem").repeat(14);
    let signer = |chain: &str| {
        let signer = Signer::parse(&text("p256.pem")).unwrap().certificates(chain).unwrap();
        signer.overwrite(true).sign(model.path(), &signature)
    };
    signer(&chain).unwrap();
    let roots = Verifier::with_roots(&text("root.pem")).unwrap();
    roots.verify(model.path(), &signature).unwrap();
    let error = signer(&(chain + &text("middle.pem"))).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::BadBundle { .. }), "{error}");
    assert!(error.to_string().contains("expected 1 to 16 certificates, found 17"), "{error}");
}

#[test]
fn the_signer_needs_a_certificate_of_its_key() {
    let error = |key: &str, chain: &str| {
        let signer = Signer::parse(&text(key)).unwrap();
        signer.certificates(&text(chain)).unwrap_err().to_string()
    };
    assert!(error("p384.pem", "digital.chain.pem").contains("it is of another key"));
    assert!(error("p256.pem", "usage.chain.pem").contains("cannot sign a model"));
}
