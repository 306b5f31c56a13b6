//! Signature files that are malformed, of another kind, or tampered with.

use data_encoding::BASE64;
use safetensors_sign::{Error, ErrorKind, Report, Verifier};
use serde_json::{Value, json};

use super::{MODEL, fixture, kind, model, text, verify};

/// Verifies the model by this signature file and the key of the fixtures.
fn verify_text(bundle: &str) -> Result<Report, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.sig");
    std::fs::write(&path, bundle).unwrap();
    Verifier::with_key(&text("p256.pub")).unwrap().verify(model().path(), path)
}

fn changed(change: impl FnOnce(&mut Value)) -> Result<Report, Error> {
    let mut bundle = serde_json::from_str(&text("p256.sig")).unwrap();
    change(&mut bundle);
    verify_text(&bundle.to_string())
}

fn payload(bundle: &Value) -> Vec<u8> {
    let text = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    BASE64.decode(text.as_bytes()).unwrap()
}

#[test]
fn any_change_of_the_signed_content_is_detected() {
    let bundle: Value = serde_json::from_str(&text("p256.sig")).unwrap();
    let original = payload(&bundle);
    let mut wrong = 0;
    for at in (0..original.len()).step_by(97) {
        let error = changed(|bundle| {
            let mut payload = payload(bundle);
            payload[at] ^= 1;
            bundle["dsseEnvelope"]["payload"] = BASE64.encode(&payload).into();
        });
        let error = error.unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::WrongSignature), "{at}: {error}");
        wrong += 1;
    }
    assert!(wrong > 10);
}

#[test]
fn a_signature_over_other_bytes_is_wrong() {
    let other: Value = serde_json::from_str(&text("blake3.sig")).unwrap();
    for (place, value) in [
        ("signatures", other["dsseEnvelope"]["signatures"].clone()),
        ("payload", other["dsseEnvelope"]["payload"].clone()),
        ("signatures", json!([{"sig": ""}])),
        ("signatures", json!([{"sig": "MAYCAQACAQA="}])),
    ] {
        let error = changed(|bundle| bundle["dsseEnvelope"][place] = value).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::WrongSignature), "{error}");
    }
    // Without a hint, only the signature shows that the key is another.
    let error = changed(|bundle| bundle["verificationMaterial"]["publicKey"] = json!({}));
    assert_eq!(error.unwrap().files, MODEL.len());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.sig");
    let mut bundle: Value = serde_json::from_str(&text("p256.sig")).unwrap();
    bundle["verificationMaterial"]["publicKey"] = json!({"hint": ""});
    std::fs::write(&path, bundle.to_string()).unwrap();
    let other = Verifier::with_key(&text("other.pub")).unwrap();
    let error = other.verify(model().path(), &path).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::WrongSignature), "{error}");
}

#[test]
fn older_and_other_writers_are_read() {
    // Before 1.1.0 the bundle had the key itself.
    let key = BASE64.encode(text("p256.pub").as_bytes());
    let old = json!({"rawBytes": key, "keyDetails": "PKIX_ECDSA_P256_SHA_256"});
    let report = changed(|bundle| bundle["verificationMaterial"]["publicKey"] = old);
    assert_eq!(report.unwrap().files, MODEL.len());
    let key = BASE64.encode(text("other.pub").as_bytes());
    let error = changed(|it| it["verificationMaterial"]["publicKey"] = json!({"rawBytes": key}));
    assert!(matches!(kind(&error.unwrap_err()), ErrorKind::OtherKey { .. }));
    for keyid in [json!(null), json!(""), json!("a")] {
        changed(|it| it["dsseEnvelope"]["signatures"][0]["keyid"] = keyid).unwrap();
    }
    let without = |bundle: &mut Value| {
        bundle["verificationMaterial"].as_object_mut().unwrap().remove("tlogEntries");
        bundle["dsseEnvelope"]["signatures"][0].as_object_mut().unwrap().remove("keyid");
        bundle["later"] = json!([{"field": 1}]);
    };
    changed(without).unwrap();
}

#[test]
fn other_kinds_of_signatures_are_refused_by_name() {
    let keyless = |bundle: &mut Value| {
        bundle["verificationMaterial"] =
            json!({"certificate": {"rawBytes": ""}, "tlogEntries": []});
    };
    assert!(matches!(kind(&changed(keyless).unwrap_err()), ErrorKind::Keyless));
    let logged = |bundle: &mut Value| bundle["verificationMaterial"]["tlogEntries"] = json!([{}]);
    assert!(matches!(kind(&changed(logged).unwrap_err()), ErrorKind::Keyless));
    let old = |bundle: &mut Value| {
        let payload = br#"{"predicateType":"https://model_signing/Digests/v0.1"}"#;
        bundle["dsseEnvelope"]["payload"] = BASE64.encode(payload).into();
    };
    assert!(matches!(kind(&changed(old).unwrap_err()), ErrorKind::OldFormat));
    for (name, what) in [
        ("shards.sig", r#"the way in which files are listed is "shards"; expected files"#),
        ("blake2.sig", r#"the hash of files is "blake2b"; expected "sha256" or "blake3""#),
    ] {
        let error = verify("p256.pub", name).unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn malformed_files_are_refused() {
    let two = |bundle: &mut Value| {
        let all = bundle["dsseEnvelope"]["signatures"].as_array_mut().unwrap();
        all.push(all[0].clone());
    };
    let error = changed(two).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::SignatureCount { found: 2 }), "{error}");
    let error = changed(|it| it["dsseEnvelope"]["signatures"] = json!([])).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::SignatureCount { found: 0 }), "{error}");

    let media = "application/vnd.dev.sigstore.bundle+json;version=0.2";
    for error in [
        changed(|bundle| bundle["mediaType"] = media.into()),
        changed(|bundle| bundle["dsseEnvelope"]["payloadType"] = "text/plain".into()),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::Unsupported { .. }), "{error}");
    }

    let good = text("p256.sig");
    let padded = good.replace("\"sig\":\"", "\"sig\":\"\\n");
    let twice = good.replacen('{', r#"{"mediaType":"x","#, 1);
    let twice_unknown = good.replacen('{', r#"{"x":1,"x":1,"#, 1);
    let no_key = good.replace("publicKey", "public_key");
    let many = json!({"certificates": vec![json!({"rawBytes": ""}); 17]});
    let both = changed(|it| it["verificationMaterial"]["x509CertificateChain"] = many.clone());
    for (error, problem) in [
        (verify_text(""), "EOF"),
        (verify_text("[]"), "invalid"),
        (verify_text(&padded), "sig is not strict base64"),
        (verify_text(&twice), "duplicate key"),
        (verify_text(&twice_unknown), "duplicate key"),
        (verify_text(&no_key), "names neither a key nor certificates"),
        (verify_text(&(good.clone() + "{}")), "trailing characters"),
        (both, "both a key and certificates"),
        (
            changed(|it| it["verificationMaterial"] = json!({"x509CertificateChain": many})),
            "1 to 16",
        ),
        (changed(|it| it["dsseEnvelope"]["payload"] = "AB==".into()), "payload is not strict"),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(kind(&error), ErrorKind::BadBundle { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{problem}: {error}");
    }
    for len in (0..good.len()).step_by(37) {
        assert!(verify_text(&good[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_file_that_is_no_signature_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let verifier = Verifier::with_key(&text("p256.pub")).unwrap();
    let absent = verifier.verify(model().path(), dir.path().join("model.sig")).unwrap_err();
    assert!(matches!(absent.kind(), safetensors_core::ErrorKind::Io(_)), "{absent}");
    let error = verifier.verify(model().path(), dir.path()).unwrap_err();
    assert!(error.to_string().contains("a directory"), "{error}");
    let large = dir.path().join("large.sig");
    std::fs::File::create(&large).unwrap().set_len((64 << 20) + 1).unwrap();
    let error = verifier.verify(model().path(), &large).unwrap_err();
    assert!(matches!(kind(&error), ErrorKind::TooLarge { .. }), "{error}");
    let error = verifier.verify(dir.path().join("absent"), fixture("p256.sig")).unwrap_err();
    assert_eq!(error.file(), dir.path().join("absent").to_str());
}
