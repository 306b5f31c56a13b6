//! `safetensors stats`: the numbers, and how they are shown.

use crate::fixtures::*;
use predicates::prelude::*;
use safetensors_core::{Order, SaveOptions, TensorView, save};

#[test]
fn one_line_a_tensor() {
    let dir = temp_dir();
    let path = dir.path().join("model.safetensors");
    let floats = [f32::NAN, 1.0, 3.0, 0.0, f32::NEG_INFINITY];
    let brains = [0.5_f32, -0.25, 0.125, 1e30].map(half::bf16::from_f32);
    let tensors = [
        ("w", TensorView::from_slice(&[5], &floats).unwrap()),
        ("b", TensorView::from_slice(&[2, 2], &brains).unwrap()),
        ("flag", TensorView::new(safetensors_core::Dtype::BOOL, &[3], &[1, 1, 0]).unwrap()),
        // Two elements in a byte, the first in the low half.
        ("packed", TensorView::new(safetensors_core::Dtype::F4, &[2], &[0xf1]).unwrap()),
        ("none", TensorView::from_slice(&[0, 2], &[0_i64; 0]).unwrap()),
    ];
    save(&path, tensors, &SaveOptions::new().order(Order::Given).durable(false)).unwrap();
    let expected = "\
name    dtype  shape     min      mean       max        std  zeros  NaN  inf  histogram
─────────────────────────────────────────────────────────────────────────────────────
w       F32    [5]         0     1.333         3      1.247      1    1    1  ██ █
b       BF16   [2, 2]  -0.25  2.501e29  1.000e30  4.331e29      –    –    –  █  ▃
flag    BOOL   [3]         0    0.6667         1     0.4714      1    –    –  ▄  █
packed  F4     [2]        -6     -2.75       0.5       3.25      –    –    –  █  █
none    I64    [0, 2]      –         –         –          –      –    –    –

1 tensor with NaN or infinity
";
    let words = |text: &str| text.lines().filter(|line| !line.starts_with('─')).map(words).collect::<Vec<_>>();
    let output = safetensors().arg("stats").arg(&path).args(["--bins", "4"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(words(text(&output.stdout)), words(expected));
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn json_and_filter() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let output = safetensors().arg("stats").arg(&path).args(["--json", "-f", "mask", "--bins", "2"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 1);
    let mask = &json["tensors"][0];
    assert_eq!((mask["mean"].as_f64(), mask["zeros"].as_u64()), (Some(0.5), Some(1)));
    assert_eq!(mask["histogram"]["counts"], serde_json::json!([1, 1]));
}

#[test]
fn pieces_add_up() {
    // More elements than are read at a time, and not a multiple of them.
    let dir = temp_dir();
    let path = dir.path().join("large.safetensors");
    let values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let tensors = [("w", TensorView::from_slice(&[600_001], &values).unwrap())];
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let output = safetensors().arg("stats").arg(&path).args(["--json", "--bins", "10"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stats = &json["tensors"][0];
    assert_eq!((stats["finite"].as_u64(), stats["zeros"].as_u64()), (Some(600_001), Some(601)));
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / 600_001.0;
    assert!((stats["mean"].as_f64().unwrap() - mean).abs() < 1e-9, "{stats}");
    let counts: u64 =
        stats["histogram"]["counts"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(counts, 600_001);
}

#[test]
fn values_that_are_none_name_their_tensor_and_place() {
    let dir = temp_dir();
    let path = dir.path().join("bad.safetensors");
    raw_file(&path, r#"{"flag":{"dtype":"BOOL","shape":[300001],"data_offsets":[0,300001]}}"#, 300_001);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 7;
    std::fs::write(&path, bytes).unwrap();
    let error = predicate::str::contains("tensor \"flag\": element 300000 of a BOOL tensor should be 0 or 1, found 7");
    safetensors().arg("stats").arg(&path).assert().code(1).stdout("").stderr(error);
}

#[cfg(target_os = "linux")]
#[test]
fn as_many_threads_as_the_environment_says() {
    let dir = temp_dir();
    let path = dir.path().join("large.safetensors");
    let values = vec![1_u8; 1 << 20];
    let view = TensorView::from_slice(&[1 << 20], &values).unwrap();
    save(&path, (0..6).map(|i| (i.to_string(), view)), &SaveOptions::new().durable(false)).unwrap();
    for threads in [1, 5] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_safetensors"))
            .arg("stats")
            .arg(&path)
            .env("SAFETENSORS_THREADS", threads.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut most = 0;
        while child.try_wait().unwrap().is_none() {
            most = most.max(std::fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count));
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        // And one that waits for them.
        assert_eq!(most, threads + 1);
    }
}
