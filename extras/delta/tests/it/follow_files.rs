//! The files in the directory of a follower: which of them are replaced, and how it knows them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use safetensors_core::Checkpoint;
use safetensors_delta::{Chain, Delta};

use crate::followed::{Publisher, tensors};
use crate::support::{files, quick, read, write};

/// Of the files in the directory, a version replaces and removes only the files of the version
/// before.
#[test]
fn files_of_others_next_to_the_version_stay() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    let others = [
        ".env",
        ".git/HEAD",
        "adapter/adapter_model.safetensors",
        "checkpoint-500/model.safetensors",
        "notes.txt",
        "optimizer.pt",
        "tokenizer.json",
        "vision.onnx",
    ];
    for name in others {
        let path = publisher.served().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, None, 1)));
    publisher.full(3, &tensors(1, 3));
    write(&publisher.version(4), &tensors(1, 4), u64::MAX);
    for number in [3, 4] {
        let follower = publisher.follower().until(number);
        assert_eq!(follower.poll(publisher.root()).unwrap().unwrap().version, number);
        publisher.assert_served(number, &tensors(1, number as u8));
    }
    let served = files(&publisher.served());
    for name in others {
        assert_eq!(served[&publisher.served().join(name)], name.as_bytes());
    }
    // One file, config.json and the state: no shard of an older version is left.
    assert_eq!(served.len(), others.len() + 3, "{:?}", served.keys());
}

/// A process may be killed between any two of its steps.
#[test]
fn files_of_two_versions_are_distinguished() {
    let publisher = Publisher::new();
    publisher.run(1, 0);
    let state = publisher.served().join(".safetensors-follow.json");
    let is_here = |number| assert_eq!(publisher.follower().version().unwrap(), number);
    let changing = |before: Option<u64>, next: u64, files: &serde_json::Value| {
        let of = |number: u64| serde_json::json!({ "version": number, "fingerprint": "f" });
        let mut text = before.map_or_else(|| serde_json::json!({}), of);
        text["next"] = of(next);
        text["next"]["files"] = files.clone();
        fs::write(&state, text.to_string()).unwrap();
    };
    let stamps = || {
        let mut stamps = Vec::new();
        for file in Checkpoint::open(publisher.served()).unwrap().files() {
            let found = fs::metadata(file.path()).unwrap();
            let time = found.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
            let name = file.path().file_name().unwrap().to_str().unwrap();
            stamps.push(serde_json::json!([name, found.len(), time.as_nanos().to_string()]));
        }
        serde_json::Value::from(stamps)
    };
    // The first version is not in place. The files there are the follower's.
    fs::create_dir(publisher.served()).unwrap();
    fs::write(publisher.served().join("config.json"), "half").unwrap();
    changing(None, 0, &serde_json::json!([["model.safetensors", 1, "1"]]));
    is_here(None);
    assert_eq!(publisher.poll().unwrap(), Some((None, 0, Some(0), 0)));
    let old = stamps();
    changing(Some(7), 8, &old);
    is_here(Some(8));
    let mut other = old.clone();
    other[0][2] = "1".into();
    for files in [other, serde_json::json!([]), serde_json::json!([old[0]])] {
        changing(Some(7), 8, &files);
        is_here(Some(7));
    }
    // A version of another program is none of the follower's.
    publisher.clear();
    publisher.run(1, 1);
    while publisher.poll().unwrap().is_some() {}
    let chain = Chain::new([Delta::open(publisher.version(1)).unwrap()]).unwrap();
    let base = Checkpoint::open(publisher.version(0)).unwrap();
    chain.apply(&base, publisher.served(), &quick().overwrite(true)).unwrap();
    is_here(None);
    publisher.poll().unwrap_err();
}

#[test]
fn a_reader_finds_the_old_version_or_the_new_one_at_every_moment() {
    let publisher = Publisher::new();
    publisher.run(1, 12);
    let until = |number| publisher.follower().until(number).poll(publisher.root()).unwrap();
    assert!(until(0).is_some());
    let (is_done, mut seen) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=12 {
                assert!(until(number).is_some());
            }
            is_done.store(true, Ordering::Relaxed);
        });
        loop {
            let is_last = is_done.load(Ordering::Relaxed);
            let found = read(&publisher.served());
            let value = found["w"].2[0];
            assert_eq!(found, tensors(1, value));
            assert!(value >= seen, "{value} after {seen}");
            seen = value;
            if is_last {
                break;
            }
        }
    });
    assert_eq!(seen, 12);
}
