//! Keys: which are read, and that both directions work with each.

use std::fs;

use safetensors_sign::{ErrorKind, HashAlgorithm, Signer, Verifier};

use super::{MODEL, fixture, kind, model, text, verify};

#[test]
fn signatures_of_the_reference_verify() {
    for name in ["p256", "p384", "p521"] {
        let report = verify(&format!("{name}.pub"), &format!("{name}.sig")).unwrap();
        assert_eq!(report.files, MODEL.len(), "{name}");
        assert_eq!(report.bytes, MODEL.iter().map(|(_, it)| it.len() as u64).sum::<u64>());
        assert!(report.signer.starts_with("key "), "{}", report.signer);
        assert!(report.unsigned.is_empty());
    }
    assert_eq!(verify("p256.pub", "blake3.sig").unwrap().files, MODEL.len());
}

#[test]
fn own_signatures_verify_with_keys_of_both_forms() {
    let model = model();
    let signature = model.path().join("model.sig");
    for curve in ["p256", "p384", "p521"] {
        let verifier = Verifier::with_key(&text(&format!("{curve}.pub"))).unwrap();
        let mut signatures = Vec::new();
        for form in ["pem", "sec1.pem"] {
            let signer = Signer::parse(&text(&format!("{curve}.{form}"))).unwrap().overwrite(true);
            let signed = signer.sign(model.path(), &signature).unwrap();
            let verified = verifier.verify(model.path(), &signature).unwrap();
            assert_eq!(verified, signed, "{curve}.{form}");
            signatures.push(fs::read(&signature).unwrap());
        }
        // Equal keys and files give equal signatures.
        assert_eq!(signatures[0], signatures[1], "{curve}");
    }
}

#[test]
fn the_list_is_as_the_specification_has_it() {
    let model = model();
    let signature = model.path().join("sub.sig");
    let signer = Signer::parse(&text("p256.pem")).unwrap().hash(HashAlgorithm::Blake3);
    signer.ignore("a/").sign(model.path(), &signature).unwrap();
    let bundle: serde_json::Value = serde_json::from_slice(&fs::read(&signature).unwrap()).unwrap();
    // All but the list and its signature is as the reference writes it.
    let mut theirs: serde_json::Value = serde_json::from_str(&text("p256.sig")).unwrap();
    for place in ["/dsseEnvelope/payload", "/dsseEnvelope/signatures/0/sig"] {
        *theirs.pointer_mut(place).unwrap() = bundle.pointer(place).unwrap().clone();
    }
    assert_eq!(bundle, theirs);
    let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    let payload = data_encoding::BASE64.decode(payload.as_bytes()).unwrap();
    let statement: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    let predicate = &statement["predicate"];
    let names: Vec<_> = predicate["resources"].as_array().unwrap().iter().collect();
    let names: Vec<_> = names.iter().map(|it| it["name"].as_str().unwrap()).collect();
    let sorted = ["a.b", "config.json", "empty", "h\u{e9} y:0:1", "model.safetensors"];
    assert_eq!(names, sorted);
    assert_eq!(predicate["resources"][2]["digest"], blake3::hash(b"").to_string());
    let serialization = serde_json::json!({
        "method": "files", "hash_type": "blake3", "allow_symlinks": false,
        "ignore_paths": [".git", ".gitattributes", ".github", ".gitignore", "a", "sub.sig"],
    });
    assert_eq!(predicate["serialization"], serialization);
    let name = model.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(statement["subject"][0]["name"], name);
}

#[test]
fn keys_that_cannot_be_used_are_refused_by_name() {
    for (name, problem) in [
        ("encrypted.pem", "is encrypted"),
        ("encrypted.sec1.pem", "is encrypted"),
        ("k1.pem", "found 1.3.132.0.10"),
        ("rsa.pem", "found the algorithm 1.2.840.113549.1.1.1"),
        ("p256.pub", "expected a private key of a curve, found \"PUBLIC KEY\""),
        ("p256.sig", "expected a private key in PEM"),
    ] {
        let error = Signer::parse(&text(name)).unwrap_err().to_string();
        assert!(error.contains(problem), "{name}: {error}");
    }
    for (name, problem) in [
        ("p256.pem", "it is a private key"),
        ("root.pem", "it is a certificate"),
        ("p256.sig", "expected one public key"),
    ] {
        let error = Verifier::with_key(&text(name)).unwrap_err().to_string();
        assert!(error.contains(problem), "{name}: {error}");
    }
    // Damage to a key is no panic.
    let (private, public) = (text("p256.pem"), text("p256.pub"));
    for at in 0..private.len() {
        let mut damaged = private.clone().into_bytes();
        damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
        _ = Signer::parse(&String::from_utf8(damaged).unwrap());
        _ = Signer::parse(&private[..at]);
        if let Some(start) = public.get(..at) {
            assert!(Verifier::with_key(start.trim_end()).is_err() || at > public.len() - 2);
        }
    }
}

#[test]
fn a_key_after_openssls_curve_parameters_is_read() {
    let curve = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    let key = format!("{curve}{}", text("p256.sec1.pem")).replace('\n', "\r\n");
    assert!(Signer::parse(&key).is_ok());
    let two = text("p256.pem") + &text("p384.pem");
    assert!(Signer::parse(&two).unwrap_err().to_string().contains("more than one"));
}

#[test]
fn nothing_shows_a_private_key() {
    let pem = text("p256.pem");
    let secret = pem.lines().nth(1).unwrap();
    let signer = Signer::parse(&pem).unwrap();
    assert_eq!(format!("{signer:?}"), "Signer { key: P256, .. }");
    let dir = tempfile::tempdir().unwrap();
    let error = signer.sign(dir.path(), dir.path().join("model.sig")).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::NoFiles));
    assert!(!format!("{error} {error:?}").contains(secret));
    let damaged = Signer::parse(&pem.replace("MIG", "MIH")).unwrap_err();
    assert!(!format!("{damaged} {damaged:?}").contains(&secret[8..24]));
}

#[test]
fn another_key_is_refused_before_its_signature() {
    let error = verify("other.pub", "p256.sig").unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::OtherKey { .. }), "{error}");
    let named = error.to_string();
    assert!(named.contains(fixture("p256.sig").to_str().unwrap()), "{named}");
    // Another curve, too.
    let error = verify("p384.pub", "p256.sig").unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::OtherKey { .. }), "{error}");
    let error = verify("p256.pub", "digital.sig").unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::OtherMethod { .. }), "{error}");
    let roots = Verifier::with_roots(&text("root.pem")).unwrap();
    let error = roots.verify(model().path(), fixture("p256.sig")).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::OtherMethod { .. }), "{error}");
}
