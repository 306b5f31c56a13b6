//! `safetensors memory`: the memory of weights, and whether it fits.

use crate::fixtures::*;

/// The rows of the table without titles, as words.
fn rows(dir: &Path, args: &str) -> Vec<String> {
    let shown = dir.run(&format!("memory {args}")).quiet().out();
    let (table, _) = shown.split_once("\n\n").unwrap();
    let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
    table.lines().skip(2).map(words).collect()
}

/// Whether the rows begin with these words.
fn check(rows: &[String], expected: [&str; 4]) {
    for (row, start) in rows.iter().zip(expected) {
        assert!(row.starts_with(start), "{row} {start}");
    }
    assert_eq!(rows.len(), 4);
}

#[test]
fn the_memory_of_floats_depends_on_the_dtype_and_of_integers_not() {
    let dir = temp_dir();
    let values = [0.5_f32; 32 * 64];
    let ids = [1_i64; 1000];
    let tensors = [("a.q_proj.weight", array(&[32, 64], &values))];
    save(dir.at("plain.safetensors"), tensors, &quick()).unwrap();
    check(
        &rows(dir.path(), "plain.safetensors"),
        ["stored 8.2 kB", "F32 8.2 kB", "BF16, F16 4.1 kB", "8 bits 2.0 kB"],
    );
    let ids = [("ids", array(&[1000], &ids))];
    save(dir.at("ids.safetensors"), ids, &quick()).unwrap();
    check(
        &rows(dir.path(), "ids.safetensors"),
        ["stored 8.0 kB", "F32 8.0 kB", "BF16, F16 8.0 kB", "8 bits 8.0 kB"],
    );
    dir.convert("plain.safetensors four --quantize nvfp4").success();
    check(
        &rows(dir.path(), "four"),
        ["stored 1.2 kB", "F32 8.2 kB", "BF16, F16 4.1 kB", "8 bits 2.0 kB"],
    );
}

#[test]
fn a_length_adds_the_cache_of_the_settings() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    dir.run("memory . --length 10").fails(1, "--length needs a config.json").stdout("");
    dir.write("config.json", r#"{"num_hidden_layers": 3}"#);
    dir.run("memory . --length 10")
        .fails(1, "with num_hidden_layers, num_attention_heads")
        .stdout("");
    let config = r#"{"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 80,
        "num_key_value_heads": 2, "rope_theta": Infinity}"#;
    dir.write("config.json", config);
    // Three layers of two heads of 20 keys and 20 values. The mask has integers.
    let expected = [
        "stored 40 B 9.6 kB 9.6 kB",
        "F32 40 B 9.6 kB 9.6 kB",
        "BF16, F16 28 B 4.8 kB 4.8 kB",
        "8 bits 22 B 4.8 kB 4.8 kB",
    ];
    check(&rows(dir.path(), ". --length 10"), expected);
    dir.write("config.json", "{");
    dir.run("memory . --length 10").fails(1, "config.json").stdout("");
    dir.run("memory . --length -1").code(2).stdout("");
}

#[cfg(target_os = "linux")]
#[test]
fn missing_memory_is_reported() {
    let dir = temp_dir();
    let shape = vec![1_000_000, 1_000_000];
    write_hole(&dir.at("huge.safetensors"), [("w".into(), Dtype::F32, shape)]);
    let rows = rows(dir.path(), "huge.safetensors");
    let is_told = |row: &String| row.contains(" TB no, ") && row.ends_with(" more");
    assert!(rows.iter().all(is_told), "{rows:?}");
    dir.run("memory huge.safetensors").shows(" of memory is free here\n");
}
