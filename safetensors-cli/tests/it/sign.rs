//! `safetensors sign` and `safetensors verify --signature`.

use crate::fixtures::*;

/// A key, a certificate or a signature of the tests of `safetensors-sign`.
pub(crate) fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../extras/sign/tests/fixtures");
    fixtures.join(name).display().to_string()
}

/// A directory with a model of two files in `model`.
fn model() -> (tempfile::TempDir, PathBuf) {
    let dir = temp_dir();
    let model = dir.at("model");
    fs::create_dir_all(model.join("sub")).unwrap();
    small_file(&model, "model.safetensors");
    fs::write(model.join("sub/config.json"), "{}").unwrap();
    (dir, model)
}

#[test]
fn a_signed_model_verifies() {
    let (dir, _) = model();
    let (key, public) = (fixture("p256.pem"), fixture("p256.pub"));
    let signed = "2 files, ";
    dir.run(&["sign", "model", "--key", &key])
        .success()
        .stdout(starts_with(native("model/model.sig: 2 files, ")))
        .stdout(contains("signed by key "))
        .stderr("");
    let verify = ["verify", "model", "--signature", "model/model.sig", "--key", &public];
    dir.run(&verify).success().stdout(starts_with(format!("model: ok, {signed}"))).stderr("");
    dir.run(&[&verify[..], &["--quiet"]].concat()).success().stdout("");

    // A signature is replaced only if that is asked for.
    let again = ["sign", "model", "--key", &key, "--hash", "blake3"];
    dir.run(&again).fails(1, native("model/model.sig exists: it has "));
    dir.run(&[&again[..], &["--force"]].concat()).success();
    dir.run(&verify).success();

    // A single file has its signature next to it.
    dir.run(&["sign", "model/model.safetensors", "--key", &key]).success();
    let file = "model/model.safetensors";
    let signature = "model/model.safetensors.sig";
    dir.run(&["verify", file, "--signature", signature, "--key", &public]).success();

    // The directory has it, too, and its own signature does not.
    dir.run(&verify).code(1);
    let lenient = [&verify[..], &["--ignore-unsigned-files"]].concat();
    dir.run(&lenient).success().stdout(contains("; 1 other file not"));
}

#[test]
fn every_difference_is_a_line() {
    let (dir, model) = model();
    fs::write(model.join("a"), "a").unwrap();
    fs::write(model.join("b"), "b").unwrap();
    dir.run(&["sign", "model", "--key", &fixture("p384.pem")]).success();
    let public = fixture("p384.pub");
    let verify = ["verify", "model", "--signature", "model/model.sig", "--key", &public];
    fs::write(model.join("sub/config.json"), "[]").unwrap();
    fs::rename(model.join("a"), model.join("c")).unwrap();
    fs::remove_file(model.join("b")).unwrap();
    // Windows has no names with the other.
    let hostile = if cfg!(windows) { '\u{202e}' } else { '\u{1b}' };
    fs::write(model.join(format!("new{hostile}")), "").unwrap();
    let lines = "error: model: \"sub/config.json\" has changed since it was signed\n\
                 error: model: \"b\" is missing\n\
                 error: model: \"a\" has another name: \"c\"\n";
    let unsigned = format!("error: model: \"new{}\" is not signed\n", hostile.escape_unicode());
    dir.run(&verify).code(1).stdout("").stderr(format!("{lines}{unsigned}"));
    let lenient = [&verify[..], &["--ignore-unsigned-files"]].concat();
    dir.run(&lenient).code(1).stderr(lines);
}

#[test]
fn the_document_has_every_difference() {
    let (dir, model) = model();
    let [key, public, other] = ["p256.pem", "p256.pub", "p384.pub"].map(fixture);
    for name in ["a", "b", "gone"] {
        fs::write(model.join(name), name).unwrap();
    }
    dir.run(&["sign", "model", "--key", &key, "--ignore", "later"]).success();
    let verify = |key: &str, code: i32| {
        let signature = "model/model.sig";
        let verify = ["verify", "model", "--signature", signature, "--key", key, "--json"];
        let run = dir.run(&verify).code(code).stderr("");
        serde_json::from_slice::<serde_json::Value>(&run.get_output().stdout).unwrap()
    };
    let document = verify(&public, 0);
    let bytes = document["bytes"].as_u64().unwrap();
    let signer = document["signer"].as_str().unwrap().to_owned();
    assert!(bytes > 8 && signer.starts_with("key "), "{document}");
    let expected = serde_json::json!({
        "path": "model", "signature": "model/model.sig", "verified": true, "error": null,
        "signer": signer, "files": 5, "bytes": bytes,
        "changed": [], "missing": [], "renamed": [], "unsigned": [],
        "left_out": [{ "path": "later", "files": 0 }], "links_outside": [],
    });
    assert_eq!(document, expected);

    fs::write(model.join("a"), "x").unwrap();
    fs::rename(model.join("b"), model.join("c")).unwrap();
    fs::remove_file(model.join("gone")).unwrap();
    fs::write(model.join("new"), "").unwrap();
    let document = verify(&public, 1);
    let found = |key: &str| document[key].clone();
    assert_eq!((found("verified"), found("signer")), (false.into(), signer.into()));
    assert_eq!(found("changed"), serde_json::json!(["a"]));
    assert_eq!(found("missing"), serde_json::json!(["gone"]));
    assert_eq!(found("renamed"), serde_json::json!([{ "from": "b", "to": "c" }]));
    assert_eq!(found("unsigned"), serde_json::json!(["new"]));
    assert!(found("error").as_str().unwrap().contains("differ from the signed ones"), "{document}");

    // Another key: nothing is known of the files.
    let document = verify(&other, 1);
    assert_eq!((&document["verified"], &document["signer"]), (&false.into(), &().into()));
    assert!(document["error"].as_str().unwrap().contains("model.sig"), "{document}");
}

#[test]
fn certificates_lead_to_a_root() {
    let (dir, _) = model();
    let [key, chain, root] = ["p256.pem", "digital.chain.pem", "root.pem"].map(fixture);
    dir.run(&["sign", "model", "--key", &key, "--certificate", &chain])
        .shows("signed by certificate CN=signer");
    let verify = ["verify", "model", "--signature", "model/model.sig", "--certificate-chain"];
    dir.run(&[&verify[..], &[&root]].concat()).shows("signed by certificate CN=signer");
    dir.run(&[&verify[..], &[&fixture("rsa-root.pem")]].concat())
        .fails(1, "no root that was given has issued it");

    let [chain, root] = ["old.chain.pem", "old-root.pem"].map(fixture);
    dir.run(&["sign", "model", "--key", &key, "--certificate", &chain, "--force"]).success();
    let verify = [&verify[..], &[&root]].concat();
    dir.run(&verify).fails(1, "it has expired");
    dir.run(&[&verify[..], &["--allow-expired-certificates"]].concat()).success();
}

#[test]
fn no_private_key_is_published_or_shown() {
    let (dir, model) = model();
    fs::copy(fixture("p256.pem"), model.join("key.pem")).unwrap();
    let secret = fs::read_to_string(model.join("key.pem")).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    dir.run("sign model --key model/key.pem").fails(1, "the private key is in model");
    assert!(!model.join("model.sig").exists());
    let missing = fs::metadata(dir.at("absent.pem")).unwrap_err();
    for (key, problem) in [
        (fixture("encrypted.pem"), "is encrypted"),
        (fixture("p256.pub"), "expected a private key"),
        (fixture("k1.pem"), "expected the curve P-256"),
        ("absent.pem".to_owned(), &*format!("absent.pem: {missing}")),
    ] {
        let said = dir.run(&["sign", "model", "--key", &key]).code(1).err();
        assert!(said.contains(problem) && said.contains(&key), "{said}");
        assert!(!said.contains(secret), "{said}");
    }
    // Its text instead of its path: as one argument, or divided by the shell.
    let pem = fs::read_to_string(fixture("p256.pem")).unwrap();
    let words: Vec<_> = pem.split_whitespace().collect();
    for option in ["--key", "--certificate", "--certificate-chain"] {
        let joined = format!("{option}={pem}");
        for command in ["sign", "verify"] {
            let spaced = [&[command, "model", option][..], &words].concat();
            for args in [&[command, "model", option, &pem][..], &[command, &joined], &spaced] {
                let said = dir.run(args).code(2).stdout("").err();
                assert!(!said.contains(&secret[..16]), "{args:?}: {said}");
            }
        }
    }
    dir.run(&["sign", "model", "--key", &pem])
        .fails(2, "--key <FILE> takes the path of a file, not its text");
    assert!(!model.join("model.sig").exists());
}

#[test]
fn only_a_signature_is_replaced() {
    let (dir, model) = model();
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    let sign = ["sign", "model", "--key", &fixture("p256.pem"), "--force", "--signature"];
    dir.run(&[&sign[..], &["model/model.safetensors"]].concat()).fails(
        1,
        "model/model.safetensors: exists and is not replaced: it is a link, or not a signature",
    );
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), weights);
}

#[test]
fn verify_names_files_that_the_signature_does_not_cover() {
    let (dir, model) = model();
    let [key, public] = ["p256.pem", "p256.pub"].map(fixture);
    let sign = ["sign", "model", "--key", &key, "--ignore", "sub", "--ignore", "later"];
    dir.run(&sign).success();
    fs::write(model.join("sub/new"), "").unwrap();
    dir.run(&["verify", "model", "--signature", "model/model.sig", "--key", &public])
        .success()
        .stdout(ends_with("; the signature does not cover \"later\", \"sub\", 2 files\n"));
}

#[test]
fn wrong_usage_of_sign_and_verify_is_refused() {
    let (dir, _) = model();
    let public = fixture("p256.pub");
    for (arguments, problem) in [
        (&["verify", "model", "--key", &public][..], "--signature"),
        (&["verify", "model", "--signature", "s"], "name the signer's by --key"),
        (&["verify", "model", "model", "--signature", "s", "--key", &public], "one PATH"),
        (&["verify", "model", "--signature", "s", "--key", &public, "--strict"], "--strict"),
        (&["verify", "-", "--signature", "s", "--key", &public], "standard input"),
        (&["sign", "-", "--key", &public], "standard input"),
        (&["sign", "model"], "--key"),
    ] {
        let said = dir.run(arguments).code(2).err();
        assert!(said.contains(problem), "{arguments:?}: {said}");
    }
}
