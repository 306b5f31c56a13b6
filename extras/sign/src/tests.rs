//! Lists that are signed, and still must not be believed.

use std::fs;

use serde_json::{Value, json};

use crate::bundle::{Bundle, Material, message};
use crate::key::PrivateKey;
use crate::{ErrorKind, Report, Result, Verifier};

const A: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

/// Verifies a model of the files `a` and `b`, which both hold `a`, by a payload that is signed.
fn verify(payload: &[u8]) -> Result<Report> {
    let key = PrivateKey::parse(include_str!("../tests/fixtures/p256.pem"))?;
    let signature = key.sign(&message(payload))?;
    let bundle = Bundle { material: Material::Key(None), payload: payload.to_vec(), signature };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "a").unwrap();
    fs::write(at("model.sig"), bundle.to_json()?).unwrap();
    let verifier = Verifier::with_key(include_str!("../tests/fixtures/p256.pub"))?;
    verifier.verify(dir.path(), at("model.sig"))
}

/// A payload that lists these names, with a change.
fn payload(names: &[&str], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    use sha2::Digest as _;

    let digest = data_encoding::HEXLOWER.decode(A.as_bytes()).unwrap();
    let list = data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(digest.repeat(names.len())));
    let resource = |name: &&str| json!({"name": name, "algorithm": "sha256", "digest": A});
    let mut statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model", "digest": {"sha256": list}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": false},
            "resources": names.iter().map(resource).collect::<Vec<_>>(),
        },
    });
    change(&mut statement);
    statement.to_string().into_bytes()
}

fn error(payload: &[u8]) -> String {
    let error = verify(payload).unwrap_err();
    assert!(error.other::<ErrorKind>().is_some(), "{error}");
    error.to_string()
}

#[test]
fn any_order_and_unknown_fields_are_read() {
    assert_eq!(verify(&payload(&["b", "a"], |_| {})).unwrap().files, 2);
    let later = |it: &mut Value| it["predicate"]["resources"][0]["later"] = json!({"x": [1]});
    assert_eq!(verify(&payload(&["a", "b"], later)).unwrap().files, 2);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../a", "/etc/passwd", "a/../b", "./a", "", "a/", "..", "a\0b"] {
        let error = error(&payload(&["a", name], |_| {}));
        assert!(error.contains("is not a plain relative path"), "{name:?}: {error}");
    }
    assert!(error(&payload(&["a", "."], |_| {})).contains("\".\" is not a plain relative path"));
    assert!(error(&payload(&["a", "a"], |_| {})).contains("\"a\" is signed twice"));
    assert!(error(&payload(&[], |_| {})).contains("there are no files"));
    // The signature is no file of the model, even if it lists itself.
    assert!(error(&payload(&["a", "b", "model.sig"], |_| {})).contains("missing: \"model.sig\""));
}

#[test]
fn lists_of_other_kinds_are_refused() {
    let changed = |place: &str, value: Value| {
        error(&payload(&["a", "b"], |it| *it.pointer_mut(place).unwrap() = value))
    };
    for (place, value, problem) in [
        ("/_type", json!("x"), "the type of the statement is \"x\""),
        ("/predicateType", json!("x"), "the type of the predicate is \"x\""),
        ("/subject", json!([]), "expected 1 subject, found 0"),
        ("/subject/0/digest/sha256", json!(A), "the digest of the signed list should be"),
        ("/predicate/serialization/method", json!("shards"), "\"shards\""),
        ("/predicate/serialization/hash_type", json!("blake3"), "the hash of a file is \"sha256\""),
        ("/predicate/resources/0/algorithm", json!("md5"), "the hash of a file is \"md5\""),
        ("/predicate/resources/0/digest", json!(A.to_uppercase()), "64 lower-case"),
        ("/predicate/resources/0/digest", json!(&A[2..]), "64 lower-case"),
        ("/predicate/resources/0/name", json!(1), "invalid type"),
        ("/predicate/serialization", json!({}), "missing field"),
    ] {
        let error = changed(place, value);
        assert!(error.contains(problem), "{place}: {error}");
    }
    let twice = String::from_utf8(payload(&["a", "b"], |_| {})).unwrap();
    let twice = twice.replacen("\"name\":\"a\"", "\"name\":\"a\",\"name\":\"c\"", 1);
    assert!(error(twice.as_bytes()).contains("duplicate key"));
}
