//! Directories and indexes: files that open, their order, and files that are refused.

use safetensors_core::checkpoint::Assembled;
use safetensors_core::{
    Checkpoint, ErrorKind, LoadOptions, SaveOptions, ShardOptions, TensorView, save, save_sharded,
};
use safetensors_hub::remote::{RemoteFile, open};
use safetensors_testing::files::files_below;

use super::server::{Fault, Server};
use super::{file, options, tensors};

/// A checkpoint of several files, by name.
fn sharded() -> Vec<(String, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let tensors = tensors(&[("a", 1000), ("b", 1000), ("c", 500)]);
    let named = tensors.iter().map(|(name, buf)| (name, buf));
    save_sharded(dir.path(), named, &ShardOptions::new().max_shard_size(1000.into())).unwrap();
    files_below(dir.path())
}

fn check(checkpoint: &Checkpoint<Assembled<RemoteFile>>) {
    assert_eq!((checkpoint.len(), checkpoint.files().len()), (3, 3));
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    let expected = tensors(&[("a", 1000), ("b", 1000), ("c", 500)]);
    for (tensor, buf) in checkpoint.tensors().zip(read) {
        let (_, expected) = expected.iter().find(|(name, _)| name == tensor.name()).unwrap();
        assert_eq!(buf.bytes(), expected.bytes());
    }
    checkpoint.check_unchanged().unwrap();
}

#[test]
fn an_index_and_a_directory_on_a_web_server_open() {
    let server = Server::new();
    for (name, bytes) in sharded() {
        server.put(&format!("gpt/{name}"), bytes);
    }
    let index = options().open(&server.address("gpt/model.safetensors.index.json")).unwrap();
    check(&index);
    assert!(index.index_path().unwrap().ends_with("gpt/model.safetensors.index.json"));
    server.take_log();
    for directory in ["gpt", "gpt/"] {
        check(&options().open(&server.address(directory)).unwrap());
        // `model.safetensors`, the index, three files, and the index again: it is still the same.
        let methods: Vec<_> = server.take_log().into_iter().map(|request| request.method).collect();
        assert_eq!(methods, ["GET", "GET", "GET", "GET", "GET", "HEAD", "HEAD"]);
    }
}

#[test]
fn the_single_file_comes_before_an_index() {
    let server = Server::new().with("gpt/model.safetensors", file(&tensors(&[("x", 7)])));
    for (name, bytes) in sharded() {
        server.put(&format!("gpt/{name}"), bytes);
    }
    let checkpoint = options().open(&server.address("gpt")).unwrap();
    assert_eq!((checkpoint.len(), server.take_log().len()), (1, 1));
}

#[test]
fn a_directory_of_the_disk_opens_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("file://{}", dir.path().display());
    let error = open(&address).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoCheckpoint { .. }), "{error}");
    for (name, bytes) in sharded() {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    check(&open(&address).unwrap());
    check(&open(&format!("{address}/model.safetensors.index.json")).unwrap());
    let error = open(&format!("{address}/other.safetensors")).unwrap_err();
    let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
    assert_eq!(found.kind(), std::io::ErrorKind::NotFound);

    // Another single file, found by listing.
    let only = dir.path().join("only");
    std::fs::create_dir(&only).unwrap();
    let tensor = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
    save(only.join("x.safetensors"), [("x", tensor)], &SaveOptions::new()).unwrap();
    assert_eq!(open(&format!("{address}/only")).unwrap().len(), 1);
    save(only.join("y.safetensors"), [("y", tensor)], &SaveOptions::new()).unwrap();
    let error = open(&format!("{address}/only")).unwrap_err();
    let ErrorKind::NoCheckpoint { found, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(found, &["x.safetensors", "y.safetensors"]);
}

/// A server that may not reveal its files: it refuses missing ones.
fn secretive(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Server {
    let server = Server::new();
    let mut names = Vec::new();
    for (name, bytes) in files {
        server.put(&name, bytes);
        names.push(format!("/{name}"));
    }
    server.misbehave(move |_, request| {
        if names.contains(&request.path) { None } else { Some(Fault::Status(403, "AccessDenied")) }
    });
    server
}

#[test]
fn a_server_may_refuse_access_to_missing_files() {
    let below = |(name, bytes): (String, Vec<u8>)| (format!("gpt/{name}"), bytes);
    let server = secretive(sharded().into_iter().map(below));
    check(&options().open(&server.address("gpt")).unwrap());
    check(&options().open(&server.address("gpt/model.safetensors.index.json")).unwrap());
    let one = file(&tensors(&[("x", 7)]));
    let server =
        secretive([("weights".to_owned(), one.clone()), ("gpt/model.safetensors".to_owned(), one)]);
    for address in ["weights", "gpt", "gpt/model.safetensors"] {
        assert_eq!(options().open(&server.address(address)).unwrap().len(), 1);
    }

    // Where nothing is found, the credentials may be wrong.
    for absent in ["absent", "absent.safetensors", "gpt/model.safetensors.index.json", "a.json"] {
        let error = options().open(&server.address(absent)).unwrap_err();
        let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
        assert_eq!(found.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("403"), "{error}");
    }
    // One refusal among files that are absent is as suspicious.
    server.misbehave(|_, request| {
        if request.path.ends_with("x/model.safetensors") {
            Some(Fault::Status(403, "AccessDenied"))
        } else {
            None
        }
    });
    let error = options().open(&server.address("x")).unwrap_err();
    assert!(error.to_string().contains("403"), "{error}");
}

#[test]
fn names_that_an_address_must_encode() {
    let server = Server::new().with("a b/mä.safetensors", file(&tensors(&[("x", 7)])));
    let checkpoint = options().open(&server.address("a%20b/m%C3%A4.safetensors")).unwrap();
    let path = checkpoint.files()[0].path().to_owned();
    assert!(path.ends_with("a b/mä.safetensors"), "{path:?}");
}

#[test]
fn a_hostile_index_is_refused_as_on_the_disk() {
    let index = |file: &str| format!(r#"{{"weight_map": {{"w": {file:?}}}}}"#);
    for name in [
        "../secret.safetensors",
        "/etc/passwd.safetensors",
        "a/../../b.safetensors",
        "http://127.0.0.1:1/x.safetensors",
        "c:x.safetensors",
        "a\\b.safetensors",
        "config.json",
        "",
    ] {
        let server = Server::new().with("m/model.safetensors.index.json", index(name));
        let address = server.address("m/model.safetensors.index.json");
        let error = options().open(&address).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadIndex { .. }), "{name}: {error}");
        // Nothing but the index was asked for.
        assert!(server.take_log().iter().all(|request| request.path.ends_with("index.json")));
    }
    for text in ["", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
        let server = Server::new().with("model.safetensors.index.json", text);
        let address = server.address("model.safetensors.index.json");
        let error = options().open(&address).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadIndex { .. }), "{text}: {error}");
    }
}

#[test]
fn shards_that_are_missing_or_lack_a_tensor() {
    let text = r#"{"weight_map": {"w": "1.safetensors", "v": "2.safetensors"}}"#;
    let server = Server::new()
        .with("model.safetensors.index.json", text)
        .with("1.safetensors", file(&tensors(&[("w", 7)])));
    let address = server.address("model.safetensors.index.json");
    let error = options().open(&address).unwrap_err();
    assert_eq!(
        (error.file(), error.tensor()),
        (Some(&*server.address("2.safetensors")), Some("v"))
    );
    server.put("2.safetensors", file(&tensors(&[("u", 7)])));
    let error = options().open(&address).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotInShard { .. }), "{error}");
    // A page instead of a file.
    server.put("2.safetensors", "<html>sign in</html>");
    let error = options().open(&address).unwrap_err();
    assert!(error.to_string().contains("not a safetensors file"), "{error}");
    server.put("2.safetensors", "");
    let error = options().open(&address).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooShort { found: 0 }), "{error}");
}
