//! What a hostile header costs the commands that only look: memory of five times its length at
//! most, besides what the process takes anyway. In a process for itself: the peak is measured for all
//! of its children.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use safetensors_testing::process::is_alone;

/// What the process takes for itself: its code, its threads, its buffers.
const OWN: u64 = 32 << 20;

/// The most memory that any child of this process has had so far, in bytes.
fn peak() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() as u64 * 1024
}

/// Writes a file of this header, part by part, and this much data. This process stays small itself:
/// a child starts as its copy.
fn write_file(path: &Path, parts: impl IntoIterator<Item = String>, data: u64) -> u64 {
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&[0; 8]).unwrap();
    parts.into_iter().for_each(|part| file.write_all(part.as_bytes()).unwrap());
    let len = file.stream_position().unwrap() - 8;
    file.rewind().unwrap();
    file.write_all(&len.to_le_bytes()).unwrap();
    file.into_inner().unwrap().set_len(8 + len + data).unwrap();
    len
}

/// The header of tensors with these names and shapes, each of `len` bytes.
fn tensors(
    count: u64,
    len: u64,
    tensor: impl Fn(u64) -> (String, String),
) -> impl Iterator<Item = String> {
    (0..count).map(move |i| {
        let ((name, shape), begin, end) = (tensor(i), i * len, (i + 1) * len);
        let open = if i == 0 { "{" } else { "," };
        let close = if i + 1 == count { "}" } else { "" };
        format!(
            r#"{open}"{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{begin},{end}]}}{close}"#
        )
    })
}

/// The header of so much metadata.
fn metadata(count: usize, value: &str) -> impl Iterator<Item = String> {
    (0..count).map(move |i| {
        let open = if i == 0 { "{\"__metadata__\":{" } else { "," };
        let close = if i + 1 == count { "}}" } else { "" };
        format!(r#"{open}"{i:x}":"{value}"{close}"#)
    })
}

/// Runs a command on a path, and asserts that it took `times` as much memory as the header has
/// bytes at most.
#[track_caller]
fn assert_takes(times: u64, command: &str, path: &Path, header: u64) {
    let mut words = command.split(' ');
    let status = Command::new(env!("CARGO_BIN_EXE_safetensors"))
        .arg(words.next().unwrap())
        .arg(path)
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{command}");
    let (peak, most) = (peak(), OWN + times * header);
    assert!(
        peak <= most,
        "{command} of {}: {} MB for a header of {} MB",
        path.display(),
        peak / 1_000_000,
        header / 1_000_000
    );
}

#[test]
fn commands_that_look_take_five_times_the_header_at_most() {
    if !is_alone(commands_that_look_take_five_times_the_header_at_most) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).with_extension("safetensors");
    let file = |name: &str, parts: &mut dyn Iterator<Item = String>, data| -> (PathBuf, u64) {
        (path(name), write_file(&path(name), parts, data))
    };

    // The shortest entries that there are: most tensors.
    let short = file("short", &mut tensors(180_000, 0, |i| (format!("{i:x}"), "0".into())), 0);
    for command in
        ["verify", "verify --json", "inspect", "inspect --flat", "inspect --json --sort name"]
    {
        assert_takes(5, command, &short.0, short.1);
    }
    // A module for every two tensors, whose names grow when they are escaped.
    let name = |i: u64| format!("{:017b}", i / 2).replace('1', "\u{7f}.");
    let modules = |i: u64| (format!("{}{}", name(i), i % 2), "0".into());
    let modules = file("modules", &mut tensors(120_000, 0, modules), 0);
    // Each could be folded into one with another, and none is.
    let numbers = |i: u64| (i.to_string(), format!("0,{i}"));
    let numbers = file("numbers", &mut tensors(150_000, 0, numbers), 0);
    for (path, header) in [modules, numbers] {
        assert_takes(5, "inspect --sort size", &path, header);
    }
    // The shortest dimensions that there are: most of them.
    let dims = vec!["1"; 1_000].join(",");
    let ndim = |i: u64| (i.to_string(), dims.clone());
    let (path, header) = file("ndim", &mut tensors(5_000, 1, ndim), 5_000);
    assert_takes(5, "verify", &path, header);
    assert_takes(5, "inspect", &path, header);

    for (name, count, value) in [
        ("long value", 1, "v".repeat(10_000_000)),
        ("many values", 100_000, "v".repeat(90)),
        ("escaped values", 100_000, "\\n".repeat(45)),
    ] {
        let (path, header) = file(name, &mut metadata(count, &value), 0);
        for command in ["verify --json", "inspect", "inspect --json"] {
            assert_takes(5, command, &path, header);
        }
    }

    // An index, which counts as the header of all files together.
    let index = dir.path().join("model.safetensors.index.json");
    let mut map = BufWriter::new(File::create(&index).unwrap());
    map.write_all(b"{\"weight_map\":{").unwrap();
    for i in 0..180_000 {
        let comma = if i == 0 { "" } else { "," };
        write!(map, r#"{comma}"{i:x}":"short.safetensors""#).unwrap();
    }
    map.write_all(b"}}").unwrap();
    let header = short.1 + map.stream_position().unwrap();
    drop(map);
    assert_takes(5, "verify", &index, header);
    assert_takes(5, "inspect", &index, header);

    // Tensors with values, of each of which there is much to keep.
    let one = |i: u64| (format!("{i:x}"), "1".into());
    let (path, header) = file("values", &mut tensors(200_000, 1, one), 200_000);
    assert_takes(5, "stats", &short.0, short.1);
    assert_takes(5, "stats", &path, header);
    assert_takes(5, "stats --json", &path, header);
}
