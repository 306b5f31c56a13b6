//! `safetensors stats`: the numbers, and how they are shown.

use safetensors_core::save::Order;

use crate::fixtures::*;

#[test]
fn stats_prints_one_line_a_tensor() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let floats = [f32::NAN, 1.0, 3.0, 0.0, f32::NEG_INFINITY];
    let brains = [0.5_f32, -0.25, 0.125, 1e30].map(half::bf16::from_f32);
    let tensors = [
        ("w", array(&[5], &floats)),
        ("b", array(&[2, 2], &brains)),
        ("flag", TensorView::new(Dtype::BOOL, &[3], &[1, 1, 0]).unwrap()),
        // Two elements in a byte, the first in the low half.
        ("packed", TensorView::new(Dtype::F4, &[2], &[0xf1]).unwrap()),
        ("none", array(&[0, 2], &[0_i64; 0])),
    ];
    save(&path, tensors, &quick().order(Order::Given)).unwrap();
    let expected = "\
name    dtype  shape     min       p1     p50       p99       max      mean       std  zeros  NaN  inf  histogram
─────────────────────────────────────────────────────────────────────────────────────────────────────────────────
w       F32    [5]         0     0.02       1      2.96         3     1.333     1.247      1    1    1  ██ █
b       BF16   [2, 2]  -0.25  -0.2387  0.3125  9.702e29  1.000e30  2.501e29  4.331e29      –    –    –  █  ▃
flag    BOOL   [3]         0     0.02       1         1         1    0.6667    0.4714      1    –    –  ▄  █
packed  F4     [2]        -6   -5.935   -2.75     0.435       0.5     -2.75      3.25      –    –    –  █  █
none    I64    [0, 2]      –        –       –         –         –         –         –      –    –    –

1 tensor with NaN or infinity
";
    dir.run("stats model.safetensors --bins 4").success().stdout(expected).stderr("");
    dir.run("stats model.safetensors --bins 0").success().stdout(contains("histogram").not());
}

#[test]
fn stats_has_json_and_a_filter() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let json = run("stats --json -f mask --bins 2", &path, "").json();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 1);
    let mask = &json["tensors"][0];
    assert_eq!((mask["mean"].as_f64(), mask["zeros"].as_u64()), (Some(0.5), Some(1)));
    assert_eq!(mask["histogram"]["counts"], serde_json::json!([1, 1]));
}

#[test]
fn pieces_add_up() {
    // More elements than one piece holds, and not a multiple of a piece.
    let dir = temp_dir();
    let path = dir.at("large.safetensors");
    let values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let tensors = [("w", array(&[600_001], &values))];
    save(&path, tensors, &quick()).unwrap();
    let json = run("stats --json --bins 10", &path, "").json();
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
    let path = dir.at("bad.safetensors");
    let header = concat!(
        r#"{"flag":{"dtype":"BOOL","shape":[300001],"data_offsets":[0,300001]},"#,
        r#""u":{"dtype":"U8","shape":[2],"data_offsets":[300001,300003]}}"#
    );
    raw_file(&path, header, 300_003);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 3;
    bytes[last..].copy_from_slice(&[7, 1, 3]);
    fs::write(&path, bytes).unwrap();
    let error = "tensor \"flag\": element 300000 of a BOOL tensor should be 0 or 1, found 7";
    let expected = "\
name  dtype  shape     min    p1  p50   p99  max  mean  std  zeros  NaN  inf  histogram
───────────────────────────────────────────────────────────────────────────────────────
flag  BOOL   [300001]    –     –    –     –    –     –    –      –    –    –
u     U8     [2]         1  1.02    2  2.98    3     2    1      –    –    –  ██
";
    let shown = dir.run("stats bad.safetensors --bins 2").code(1).stdout(expected);
    shown.stderr(format!("error: bad.safetensors: {error}\n"));
    let json = run("stats --json", &path, "").code(1).stderr("").json();
    assert!(json["tensors"][0]["error"].as_str().unwrap().ends_with(error), "{json}");
    assert_eq!(
        (&json["tensors"][1]["error"], &json["tensors"][1]["max"]),
        (&serde_json::Value::Null, &3.0.into())
    );
}

#[test]
fn a_deviation_that_overflows_is_null_though_there_are_values() {
    let dir = temp_dir();
    let path = dir.at("large.safetensors");
    let tensors = [("w", array(&[2], &[1e200_f64, -1e200]))];
    save(&path, tensors, &quick()).unwrap();
    let json = run("stats --json", &path, "").json();
    let w = &json["tensors"][0];
    assert_eq!(
        (&w["std"], &w["finite"], &w["mean"]),
        (&serde_json::Value::Null, &2.into(), &0.0.into())
    );
}

/// Returns the percentiles of a tensor and the exact ones, which equal NumPy's default.
fn percentiles_of(view: TensorView<'_>, values: &[f64]) -> Vec<(f64, f64)> {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    save(&path, [("w", view)], &quick()).unwrap();
    let asked = [0.0, 0.5, 10.0, 25.0, 50.0, 90.0, 99.9, 100.0];
    let list = asked.map(|percent| percent.to_string()).join(",");
    let json = run(&["stats", "--json", "--percentiles", &list], &path, "").json();
    let found = json["tensors"][0]["percentiles"].as_object().unwrap();
    assert_eq!(found.len(), asked.len());
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let exact = asked.map(|percent| {
        let position = percent / 100.0 * (sorted.len() - 1) as f64;
        let (a, b) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
        a + (b - a) * position.fract()
    });
    let found = asked.map(|percent| found[&percent.to_string()].as_f64().unwrap());
    found.into_iter().zip(exact).collect()
}

/// Large enough for several threads, and skewed, with numbers of both signs.
fn skewed(len: usize) -> impl Iterator<Item = f64> {
    (0..len as u64).map(move |i| {
        let at = (i.wrapping_mul(2_654_435_761) % len as u64) as f64 / len as f64;
        (at - 0.3) * (-12.0 * at).exp()
    })
}

#[test]
fn other_percentiles_are_as_near_as_the_readme_promises() {
    let near = |all: Vec<(f64, f64)>| {
        for (found, exact) in all {
            assert!((found - exact).abs() <= exact.abs() * 0.000_5, "{found} instead of {exact}");
        }
    };
    let singles: Vec<_> = skewed(1_000_000).map(|value| value as f32).collect();
    let values: Vec<_> = singles.iter().map(|&single| f64::from(single)).collect();
    near(percentiles_of(array(&[1_000_000], &singles), &values));
    let doubles: Vec<_> = skewed(5000).map(|value| value * 1e250).collect();
    near(percentiles_of(array(&[5000], &doubles), &doubles));
    let wholes: Vec<_> = skewed(300_000).map(|value| (value * 1e15) as i64).collect();
    let values: Vec<_> = wholes.iter().map(|&whole| whole as f64).collect();
    near(percentiles_of(array(&[300_000], &wholes), &values));
}

#[test]
fn a_number_that_is_no_percentile_is_wrong_usage() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for wrong in ["101", "-1", "x", "1,,2", "", "NaN"] {
        dir.run(&["stats", "model.safetensors", &format!("--percentiles={wrong}")])
            .fails(2, "expected a number from 0 to 100");
    }
    let shown = dir.run("stats model.safetensors --percentiles '99.9, 5,5'");
    shown.shows("  min    p5  p99.9  max  ");
}

#[test]
fn an_outlier_is_marked_next_to_the_histogram() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let mut values: Vec<f32> = (0..6000).map(|i| i as f32 / 1000.0).collect();
    values.extend([1e9, f32::MIN]);
    let view = array(&[6002], &values);
    let other = array(&[3000], &values[..3000]);
    save(&path, [("a", view), ("b", other)], &quick()).unwrap();
    let shown = dir.run("stats model.safetensors --bins 6").success();
    let rows: Vec<_> = text(&shown.get_output().stdout).lines().skip(2).collect();
    assert!(rows[0].ends_with("  <██████>") && rows[1].ends_with("   ██████"), "{rows:?}");
}

#[test]
fn the_number_of_threads_makes_no_difference() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let values: Vec<_> = skewed(2_000_000).map(|value| value as f32).collect();
    let view = array(&[2_000_000], &values);
    save(&path, [("w", view)], &quick()).unwrap();
    let shown = |threads: &str| {
        let mut command = safetensors();
        command.env("SAFETENSORS_THREADS", threads).args(["stats", "--json"]).arg(&path);
        command.output().unwrap().stdout
    };
    assert_eq!(shown("1"), shown("7"));
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
            .fails(2, expected);
    }
}
