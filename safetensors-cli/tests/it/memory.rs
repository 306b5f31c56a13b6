//! The cost of a hostile header for the commands that only look: memory of five times its length at
//! most, in addition to the process's usual memory. And the memory of `convert` for quantised
//! weights: no more than that. In a separate process: the peak is measured for all of its children.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use safetensors_testing::process::is_alone;
use tempfile::{TempDir, tempdir};

/// For the threads and buffers of a process that reads more than a few tensors.
const BUFFERS: u64 = 4 << 20;

/// The usual memory of the process, in bytes. The system decides how much of the code is in memory.
fn usual() -> u64 {
    static USUAL: OnceLock<u64> = OnceLock::new();
    *USUAL.get_or_init(|| {
        let dir = tempdir().unwrap();
        let (small, _) = file(&dir, "small", tensors(1, 1, |i| (i.to_string(), "1".into())), 1);
        run("inspect", &small);
        peak() + BUFFERS
    })
}

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

/// Runs a command on a path.
#[track_caller]
fn run(command: &str, path: &Path) {
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
}

/// Runs a command on a path, and asserts that it took `times` as much memory as the header has
/// bytes at most.
#[track_caller]
fn assert_takes(times: u64, command: &str, path: &Path, header: u64) {
    let most = usual() + times * header;
    run(command, path);
    let peak = peak();
    assert!(
        peak <= most,
        "{command} of {}: {} MB for a header of {} MB",
        path.display(),
        peak / 1_000_000,
        header / 1_000_000
    );
}

/// Writes a file into a directory, and returns its path and the length of its header.
fn file(
    dir: &TempDir,
    name: &str,
    parts: impl IntoIterator<Item = String>,
    data: u64,
) -> (PathBuf, u64) {
    let path = dir.path().join(name).with_extension("safetensors");
    let header = write_file(&path, parts, data);
    (path, header)
}

/// The file of the shortest entries that there are: most tensors.
fn short(dir: &TempDir) -> (PathBuf, u64) {
    file(dir, "short", tensors(120_000, 0, |i| (format!("{i:x}"), "0".into())), 0)
}

#[test]
fn most_tensors_take_five_times_the_header_at_most() {
    if !is_alone(most_tensors_take_five_times_the_header_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    let (path, header) = short(&dir);
    for command in ["verify --json", "inspect --flat", "inspect --json --sort name"] {
        assert_takes(5, command, &path, header);
    }
}

#[test]
fn names_and_shapes_take_five_times_the_header_at_most() {
    if !is_alone(names_and_shapes_take_five_times_the_header_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    // A module for every two tensors, with names that grow when they are escaped.
    let name = |i: u64| format!("{:017b}", i / 2).replace('1', "\u{7f}.");
    let modules = |i: u64| (format!("{}{}", name(i), i % 2), "0".into());
    let modules = file(&dir, "modules", tensors(80_000, 0, modules), 0);
    // Each could be folded into one with another, and none is.
    let numbers = |i: u64| (i.to_string(), format!("0,{i}"));
    let numbers = file(&dir, "numbers", tensors(100_000, 0, numbers), 0);
    for (path, header) in [modules, numbers] {
        assert_takes(5, "inspect --sort size", &path, header);
    }
    // The shortest dimensions that there are: most of them.
    let dims = vec!["1"; 1_000].join(",");
    let ndim = |i: u64| (i.to_string(), dims.clone());
    let (path, header) = file(&dir, "ndim", tensors(3_500, 1, ndim), 3_500);
    assert_takes(5, "verify", &path, header);
    assert_takes(5, "inspect", &path, header);
}

#[test]
fn metadata_takes_five_times_the_header_at_most() {
    if !is_alone(metadata_takes_five_times_the_header_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    for (name, count, value) in [
        ("long value", 1, "v".repeat(7_000_000)),
        ("many values", 70_000, "v".repeat(90)),
        ("escaped values", 70_000, "\\n".repeat(45)),
    ] {
        let (path, header) = file(&dir, name, metadata(count, &value), 0);
        for command in ["verify --json", "inspect", "inspect --json"] {
            assert_takes(5, command, &path, header);
        }
    }
}

/// An index counts as the header of all files together.
#[test]
fn an_index_takes_five_times_the_headers_at_most() {
    if !is_alone(an_index_takes_five_times_the_headers_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    let (_, header) = short(&dir);
    let index = dir.path().join("model.safetensors.index.json");
    let mut map = BufWriter::new(File::create(&index).unwrap());
    map.write_all(b"{\"weight_map\":{").unwrap();
    for i in 0..120_000 {
        let comma = if i == 0 { "" } else { "," };
        write!(map, r#"{comma}"{i:x}":"short.safetensors""#).unwrap();
    }
    map.write_all(b"}}").unwrap();
    let header = header + map.stream_position().unwrap();
    drop(map);
    assert_takes(5, "verify", &index, header);
    assert_takes(5, "inspect", &index, header);
}

/// Tensors with values that need many statistics.
#[test]
fn statistics_take_five_times_the_header_at_most() {
    if !is_alone(statistics_take_five_times_the_header_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    let (path, header) = short(&dir);
    assert_takes(5, "stats", &path, header);
    let one = |i: u64| (format!("{i:x}"), "1".into());
    let (path, header) = file(&dir, "values", tensors(80_000, 1, one), 80_000);
    assert_takes(5, "stats --json", &path, header);
}

/// 64 MiB of weights, or 32, which are made numbers of, or quantised, in pieces. A copy of tensors takes
/// about as much.
#[test]
fn quantised_weights_take_no_memory_of_their_size() {
    if !is_alone(quantised_weights_take_no_memory_of_their_size) {
        return;
    }
    /// For the pieces of the threads.
    const PIECES: u64 = 16 << 20;
    let dir = tempdir().unwrap();
    let header = |layers: u64, parts: &[(&str, &str, &str, u64)]| {
        let mut begin = 0;
        let mut entries = Vec::new();
        for layer in 0..layers {
            for &(name, dtype, shape, len) in parts {
                let end = begin + len;
                entries.push(format!(
                    r#""{layer}.{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
                ));
                begin = end;
            }
        }
        ([format!("{{{}}}", entries.join(","))], begin)
    };
    let out = dir.path().join("out");
    let fp8 = [
        ("up.weight", "F8_E4M3", "4096,2048", 8 << 20),
        ("up.weight_scale_inv", "F32", "32,16", 2 << 10),
    ];
    let (fp8, len) = header(8, &fp8);
    let (path, _) = file(&dir, "fp8", fp8, len);
    assert_takes(1, &format!("convert {} --dtype bf16", out.display()), &path, PIECES);
    let (bf16, len) = header(4, &[("up.weight", "BF16", "2048,2048", 8 << 20)]);
    let (path, _) = file(&dir, "bf16", bf16, len);
    for scheme in ["fp8-block128", "nvfp4"] {
        let args = format!("convert {} --quantize {scheme} --force", out.display());
        assert_takes(1, &args, &path, PIECES);
    }
}

/// 64 MiB in columns, with a quarter in each of four files.
#[test]
fn a_directory_of_parts_takes_no_memory_of_its_size() {
    if !is_alone(a_directory_of_parts_takes_no_memory_of_its_size) {
        return;
    }
    /// For the pieces of the threads.
    const PIECES: u64 = 16 << 20;
    let dir = tempdir().unwrap();
    for rank in 0..4 {
        let info = format!(r#"{{\"w\":{{\"saved_offsets\":[0,{}]}}}}"#, rank * 512);
        let header = format!(
            r#"{{"__metadata__":{{"DCP_SHARDING_INFO":"{info}"}},"w":{{"dtype":"F32","shape":[8192,512],"data_offsets":[0,{}]}}}}"#,
            16 << 20
        );
        let name = format!("parts/shard-{:05}-model-00001-of-00001", rank + 1);
        std::fs::create_dir_all(dir.path().join("parts")).unwrap();
        file(&dir, &name, [header], 16 << 20);
    }
    let out = dir.path().join("out");
    let args = format!("convert {}", out.display());
    assert_takes(1, &args, &dir.path().join("parts"), PIECES);
}
