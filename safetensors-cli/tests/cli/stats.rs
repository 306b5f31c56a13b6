//! `safetensors stats`: the numbers, and how they are shown.

use safetensors_core::save::Order;
use safetensors_core::{SaveOptions, TensorView, save};

use crate::fixtures::*;

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
name    dtype  shape     min      mean       max       std  zeros  NaN  inf  histogram
──────────────────────────────────────────────────────────────────────────────────────
w       F32    [5]         0     1.333         3     1.247      1    1    1  ██ █
b       BF16   [2, 2]  -0.25  2.501e29  1.000e30  4.331e29      –    –    –  █  ▃
flag    BOOL   [3]         0    0.6667         1    0.4714      1    –    –  ▄  █
packed  F4     [2]        -6     -2.75       0.5      3.25      –    –    –  █  █
none    I64    [0, 2]      –         –         –         –      –    –    –

1 tensor with NaN or infinity
";
    run_in(dir.path(), &["stats", "model.safetensors", "--bins", "4"])
        .success()
        .stdout(expected)
        .stderr("");
}

#[test]
fn json_and_filter() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let output = safetensors()
        .arg("stats")
        .arg(&path)
        .args(["--json", "-f", "mask", "--bins", "2"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 1);
    let mask = &json["tensors"][0];
    assert_eq!((mask["mean"].as_f64(), mask["zeros"].as_u64()), (Some(0.5), Some(1)));
    assert_eq!(mask["histogram"]["counts"], serde_json::json!([1, 1]));
}

#[test]
fn pieces_add_up() {
    // More elements than one piece holds, and not a multiple of a piece.
    let dir = temp_dir();
    let path = dir.path().join("large.safetensors");
    let values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let tensors = [("w", TensorView::from_slice(&[600_001], &values).unwrap())];
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let output =
        safetensors().arg("stats").arg(&path).args(["--json", "--bins", "10"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stats = &json["tensors"][0];
    assert_eq!((stats["finite"].as_u64(), stats["zeros"].as_u64()), (Some(600_001), Some(601)));
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / 600_001.0;
    assert!((stats["mean"].as_f64().unwrap() - mean).abs() < 1e-9, "{stats}");
    let counts: u64 = stats["histogram"]["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(counts, 600_001);
}

#[test]
fn a_tensor_with_bytes_that_are_no_values_is_reported_and_the_others_are_shown() {
    let dir = temp_dir();
    let path = dir.path().join("bad.safetensors");
    let header = concat!(
        r#"{"flag":{"dtype":"BOOL","shape":[300001],"data_offsets":[0,300001]},"#,
        r#""u":{"dtype":"U8","shape":[2],"data_offsets":[300001,300003]}}"#
    );
    raw_file(&path, header, 300_003);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 3;
    bytes[last..].copy_from_slice(&[7, 1, 3]);
    std::fs::write(&path, bytes).unwrap();
    let error = "tensor \"flag\": element 300000 of a BOOL tensor should be 0 or 1, found 7";
    let expected = "\
name  dtype  shape     min  mean  max  std  zeros  NaN  inf  histogram
──────────────────────────────────────────────────────────────────────
flag  BOOL   [300001]    –     –    –    –      –    –    –
u     U8     [2]         1     2    3    1      –    –    –  ██
";
    let shown =
        run_in(dir.path(), &["stats", "bad.safetensors", "--bins", "2"]).code(1).stdout(expected);
    shown.stderr(format!("error: bad.safetensors: {error}\n"));
    let json = safetensors().args(["stats", "--json"]).arg(&path).output().unwrap();
    assert_eq!((json.status.code(), text(&json.stderr)), (Some(1), ""));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["tensors"][0]["error"].as_str().unwrap().ends_with(error), "{json}");
    assert_eq!(
        (&json["tensors"][1]["error"], &json["tensors"][1]["max"]),
        (&serde_json::Value::Null, &3.0.into())
    );
}

#[test]
fn a_deviation_that_overflows_is_null_though_there_are_values() {
    let dir = temp_dir();
    let path = dir.path().join("large.safetensors");
    let tensors = [("w", TensorView::from_slice(&[2], &[1e200_f64, -1e200]).unwrap())];
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let json = safetensors().args(["stats", "--json"]).arg(&path).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let w = &json["tensors"][0];
    assert_eq!(
        (&w["std"], &w["finite"], &w["mean"]),
        (&serde_json::Value::Null, &2.into(), &0.0.into())
    );
}

#[cfg(target_os = "linux")]
#[test]
fn as_many_threads_as_the_environment_says() {
    let dir = temp_dir();
    let path = dir.path().join("large.safetensors");
    let values = vec![1_u8; 1 << 23];
    let view = TensorView::from_slice(&[1 << 20], &values[..1 << 20]).unwrap();
    let one = [("w", TensorView::from_slice(&[1 << 23], &values).unwrap())];
    save(&path, (0..6).map(|i| (i.to_string(), view)), &SaveOptions::new().durable(false)).unwrap();
    let single = dir.path().join("single.safetensors");
    save(&single, one, &SaveOptions::new().durable(false)).unwrap();
    for (path, threads) in [(&path, 1), (&path, 5), (&single, 5)] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_safetensors"))
            .arg("stats")
            .arg(path)
            // Values are read only once here. The threads of a second pass may start before the
            // first threads have ended.
            .args(["--bins", "0"])
            .env("SAFETENSORS_THREADS", threads.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut most = 0;
        while child.try_wait().unwrap().is_none() {
            most = most.max(
                std::fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count),
            );
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        // And one that waits for them.
        assert_eq!(most, threads + 1);
    }
}

#[test]
fn a_number_of_threads_that_is_none_is_wrong_usage() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "a.safetensors");
    for threads in ["0", "many", "-1", ""] {
        let expected = format!("at least 1, found \"{threads}\"");
        safetensors()
            .env("SAFETENSORS_THREADS", threads)
            .arg("verify")
            .arg(&path)
            .assert()
            .code(2)
            .stderr(predicates::str::contains(expected));
    }
}
