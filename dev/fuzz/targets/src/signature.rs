//! Signatures: any bytes as a file, as a signed list, as certificates, or as a key in PEM.

use std::collections::HashSet;
use std::path::{Component, Path};

use data_encoding::BASE64;
use safetensors_sign::{Error, Signer, Verifier, parse_unverified};
use serde_json::{Value, json};

use crate::input::Input;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.below(4) {
        0 => of_file(input.rest()),
        1 => of_file(bundle(json!({"publicKey": {}}), input.rest()).as_bytes()),
        2 => {
            // The list is right, so that only the certificates decide.
            let list = br#"{"_type":"https://in-toto.io/Statement/v1","subject":[]}"#;
            let certificates: Vec<_> = (0..1 + input.below(4))
                .map(|_| {
                    let len = usize::from(u16::from_le_bytes([input.byte(), input.byte()]));
                    json!({"rawBytes": BASE64.encode(input.take(len))})
                })
                .collect();
            let chain = json!({"x509CertificateChain": {"certificates": certificates}});
            of_file(bundle(chain, list).as_bytes());
        }
        _ => of_pem(input.rest()),
    }
}

/// A signature file with this list.
fn bundle(material: Value, list: &[u8]) -> String {
    json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": material,
        "dsseEnvelope": {
            "payload": BASE64.encode(list),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": ""}],
        },
    })
    .to_string()
}

fn of_file(file: &[u8]) {
    let names = match parse_unverified(file) {
        Ok(names) => names,
        Err(error) => return can_be_shown(&error),
    };
    assert!(!names.is_empty());
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    for name in names.iter().filter(|name| names.len() > 1 || *name != ".") {
        let parts: Option<Vec<_>> = Path::new(name)
            .components()
            .map(|part| match part {
                Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .collect();
        assert_eq!(parts.map(|parts| parts.join("/")).as_ref(), Some(name));
    }
}

fn of_pem(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    if let Err(error) = Signer::parse(&text) {
        can_be_shown(&error);
    }
    for verifier in [Verifier::with_key(&text), Verifier::with_roots(&text)] {
        if let Err(error) = verifier {
            can_be_shown(&error);
        }
    }
}

/// An error names no control characters, and is not long.
fn can_be_shown(error: &Error) {
    let message = error.to_string();
    assert!(!message.chars().any(char::is_control), "{message:?}");
    assert!(message.len() < 1500, "{message}");
}
