//! Downloads that are killed, cancelled, run at once, or find the disk full.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::repo::Repo;
use crate::server::{Kind, Origin, Server};
use crate::support::*;
use safetensors_hub::client::ClientOptions;
use safetensors_hub::{DownloadOptions, download};

const LEN: usize = 4_000_000;

/// Run by the tests below in a separate process: downloads, and prints the result.
#[test]
fn child() {
    let Ok(task) = std::env::var("HUB_TEST_TASK") else { return };
    let client = ClientOptions::new().token(None).timeout(Duration::from_secs(60)).retries(0);
    let filler = std::env::var("HUB_TEST_FILLER");
    let options = DownloadOptions::new().client(client).progress(move |_| {
        if let Ok(path) = &filler {
            // Another program fills the disk at the same time.
            let _ = fs::write(path, vec![1; 8 << 20]);
        }
        ControlFlow::Continue(())
    });
    let result = download(REPO, &options);
    match task.as_str() {
        "download" => drop(result.unwrap()),
        "full" => {
            let error = result.unwrap_err();
            println!("{error}\n{error:#?}");
        }
        _ => panic!("{task}"),
    }
}

fn variables<'a>(server: &'a Server, cache: &'a Path, task: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("HF_ENDPOINT", &server.endpoint),
        ("HF_HUB_CACHE", cache.to_str().unwrap()),
        ("HUB_TEST_TASK", task),
        ("HF_HOME", "/nowhere"),
    ]
}

/// Returns the bytes of the unfinished downloads in a cache.
fn unfinished_bytes(cache: &Path) -> u64 {
    unfinished(cache)
        .iter()
        .map(|name| fs::metadata(cache.join(name)).map_or(0, |it| it.len()))
        .sum()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn after_a_kill_the_rest_is_downloaded() {
    let (server, cache) = served(single(LEN));
    let half = LEN / 2;
    server.fault(Origin::Cdn, "", 1, Kind::Stall(half, Duration::from_secs(30)));
    let mut killed = child_of(&server, cache.path()).spawn().unwrap();
    wait_until("the first half", || unfinished_bytes(cache.path()) == half as u64);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(unfinished(cache.path()).len(), 1);

    server.clear_log();
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(tensors(&snapshot)["w"].len(), LEN);
    assert_eq!(unfinished(cache.path()), [""; 0]);
    let whole = tensor_file("w", LEN).len();
    assert_eq!(server.bytes(Origin::Cdn), whole - half);
    let range = server.log().iter().find_map(|seen| seen.range.clone());
    assert_eq!(range, Some(format!("bytes={half}-{}", whole - 1)));
    assert_blobs_are_right(cache.path());
}

fn child_of(server: &Server, cache: &Path) -> std::process::Command {
    let mut command = child_process(child, &variables(server, cache, "download"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn the_rest_of_an_earlier_attempt_is_checked() {
    let server = Server::start([(REPO, single(LEN))]);
    let whole = tensor_file("w", LEN);
    let etag = etag(&whole);
    let good = &whole[..1000];
    let mut bad = good.to_vec();
    bad[500] ^= 1;
    let long = vec![7; whole.len() + 1];
    // The rest on the disk, and the number of downloaded bytes.
    for (left, bytes) in [
        (good, whole.len() - 1000),
        (&bad, 2 * whole.len() - 1000),
        (&long, whole.len()),
        (&whole, 0),
        (&[], whole.len()),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let blobs = cache.path().join("models--owner--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{etag}.0123abcd.incomplete")), left).unwrap();
        server.clear_log();
        let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
        assert_eq!(tensors(&snapshot)["w"].len(), LEN);
        assert_eq!(server.bytes(Origin::Cdn), bytes, "{} bytes were there", left.len());
        assert_blobs_are_right(cache.path());
    }
    // A blob of the wrong length is replaced.
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--owner--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(&etag), "short").unwrap();
    download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(fs::read(blobs.join(&etag)).unwrap(), whole);
}

/// Returns the SHA-256 of a file, as the Hub has it.
fn etag(bytes: &[u8]) -> String {
    let repo = Repo::new([("x.safetensors", bytes.to_vec())]);
    repo.commits[&repo.refs["main"]]["x.safetensors"].etag.clone()
}

#[test]
fn cancelling_keeps_the_downloaded_bytes() {
    let (server, cache) = served(Repo::new(shards(LEN)));
    let calls = Arc::new(AtomicUsize::new(0));
    let calls_by = calls.clone();
    let wanted = options(&server, cache.path());
    let cancelled = wanted.clone().progress(move |progress| {
        calls_by.fetch_add(1, Ordering::Relaxed);
        if progress.bytes_done > 2_000_000 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let error = download(REPO, &cancelled).unwrap_err();
    assert!(matches!(error.kind(), safetensors_core::ErrorKind::Cancelled), "{error}");
    let kept = unfinished_bytes(cache.path()) as usize;
    assert!(kept > 0 && calls.load(Ordering::Relaxed) > 1);
    server.clear_log();
    assert_eq!(tensors(&download(REPO, &wanted).unwrap()).len(), 3);
    let all: usize = shards(LEN)[2..5].iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(server.bytes(Origin::Cdn) <= all - kept);
}

#[test]
fn two_processes_download_once() {
    let (server, cache) = served(Repo::new(shards(LEN)));
    server.fault(Origin::Cdn, "", 3, Kind::Slow(Duration::from_millis(300)));
    let start = || child_of(&server, cache.path()).spawn().unwrap();
    let children = [start(), start(), start()];
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let all: usize = shards(LEN)[2..5].iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(server.bytes(Origin::Cdn), all, "each byte comes once");
    assert_eq!(tensors(&download(REPO, &options(&server, cache.path())).unwrap()).len(), 3);
    assert_eq!(unfinished(cache.path()), [""; 0]);
    assert_blobs_are_right(cache.path());
}

#[test]
fn where_locks_have_no_effect_downloads_still_end_right() {
    let (server, cache) = served(single(LEN));
    // No lock file can be made below a file.
    fs::write(cache.path().join(".locks"), "").unwrap();
    server.fault(Origin::Cdn, "", 4, Kind::Slow(Duration::from_millis(200)));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| download(REPO, &options(&server, cache.path())).unwrap()))
            .collect();
        for thread in threads {
            assert_eq!(tensors(&thread.join().unwrap())["w"].len(), LEN);
        }
    });
    assert_eq!(unfinished(cache.path()), [""; 0]);
    assert_blobs_are_right(cache.path());
}

#[test]
fn an_unfinished_file_that_another_process_takes_over_is_begun_again() {
    let server = Server::start([(REPO, single(LEN))]);
    for is_completed in [false, true] {
        let cache = tempfile::tempdir().unwrap();
        let dir = cache.path().to_owned();
        let blob = dir.join("models--owner--name/blobs").join(etag(&tensor_file("w", LEN)));
        let taken = AtomicUsize::new(0);
        let wanted = options(&server, cache.path()).progress(move |_| {
            // Simulates a process that believes it is alone, because locks have no effect.
            for name in unfinished(&dir) {
                if taken.fetch_add(1, Ordering::Relaxed) == 0 {
                    fs::rename(dir.join(&name), dir.join("taken")).unwrap();
                    if is_completed {
                        fs::write(&blob, tensor_file("w", LEN)).unwrap();
                    }
                }
            }
            ControlFlow::Continue(())
        });
        server.clear_log();
        let snapshot = download(REPO, &wanted).unwrap();
        assert_eq!(tensors(&snapshot)["w"].len(), LEN);
        let times = if is_completed { 1 } else { 2 };
        assert_eq!(server.bytes(Origin::Cdn), times * tensor_file("w", LEN).len());
        assert_blobs_are_right(cache.path());
    }
}

#[test]
fn a_killed_process_holds_no_lock() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 1, Kind::Stall(1_500_000, Duration::from_secs(30)));
    let mut first = child_of(&server, cache.path()).spawn().unwrap();
    wait_until("some bytes", || unfinished_bytes(cache.path()) >= 1_000_000);
    let mut second = child_of(&server, cache.path()).spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(second.try_wait().unwrap().is_none(), "the second waits for the first");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second.wait().unwrap().success());
    let twice = server.bytes(Origin::Cdn) - tensor_file("w", LEN).len();
    assert!(twice < 600_000, "{twice} bytes came twice");
    assert_blobs_are_right(cache.path());
}

#[test]
fn a_cache_that_cannot_be_written_but_has_all_is_enough() {
    let (server, cache) = served(single(1000));
    let wanted = options(&server, cache.path());
    let first = download(REPO, &wanted).unwrap();
    // In place of the directory of references there is a file.
    let refs = cache.path().join("models--owner--name/refs");
    fs::remove_dir_all(&refs).unwrap();
    fs::write(&refs, "").unwrap();
    assert_eq!(download(REPO, &wanted).unwrap(), first);
    let error = download(REPO, &wanted.include("config.json")).unwrap_err();
    assert!(matches!(error.kind(), safetensors_core::ErrorKind::Io(_)), "{error}");
}

#[cfg(target_os = "linux")]
mod full_disk {
    use super::*;

    /// Runs the child in a namespace with a small disk as a directory. `None` if this system does
    /// not allow that.
    fn on_small_disk(server: &Server, megabytes: u32, fills: bool) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("hub");
        fs::create_dir(&cache).unwrap();
        let plain = child_process(child, &variables(server, &cache, "full"));
        let mut command = std::process::Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={megabytes}m none \"$HF_HUB_CACHE\"");
        let run = format!("{mount} && echo mounted && exec \"$@\"");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &run, "sh"]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if fills {
            command.env("HUB_TEST_FILLER", cache.join("filler"));
        }
        let output = command.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !text.contains("mounted") {
            eprintln!("this system has no namespaces of users; the full disk is not tested");
            return None;
        }
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        Some(text)
    }

    #[test]
    fn room_is_looked_for_before_anything_is_downloaded() {
        let server = Server::start([(REPO, single(LEN))]);
        let Some(text) = on_small_disk(&server, 3, false) else { return };
        assert!(text.contains("needs 4.0 MB") && text.contains("NoSpace"), "{text}");
        assert_eq!(server.bytes(Origin::Cdn), 0);
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let server = Server::start([(REPO, single(LEN))]);
        let Some(text) = on_small_disk(&server, 6, true) else { return };
        assert!(text.contains("DiskFull") && text.contains("are kept"), "{text}");
    }
}
