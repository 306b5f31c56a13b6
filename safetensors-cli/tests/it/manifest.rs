//! `safetensors manifest`: the places of bytes in it, and its refusals.

use serde_json::{Value, json};

use crate::fixtures::*;

/// Returns the references of a manifest; JSON in a text is parsed.
fn refs(dir: &Path, args: &[&str]) -> Value {
    let args: Vec<_> = ["manifest"].iter().chain(args).copied().collect();
    let output = dir.run(&args).quiet().get_output().stdout.clone();
    let mut manifest: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(manifest["version"], 1);
    let mut refs = manifest["refs"].take();
    for (_, value) in refs.as_object_mut().unwrap() {
        if let Some(text) = value.as_str() {
            *value = serde_json::from_str(text).unwrap();
        }
    }
    refs
}

/// The bytes that a reference points to.
fn bytes(reference: &Value) -> Vec<u8> {
    let file = fs::read(reference[0].as_str().unwrap()).unwrap();
    let [offset, len] = [1, 2].map(|i| reference[i].as_u64().unwrap() as usize);
    file[offset..offset + len].to_vec()
}

#[test]
fn references_point_to_the_bytes_of_tensors() {
    let dir = temp_dir();
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let u = array(&[4, 2, 3], &values);
    let scalar = array(&[], &[7_i64]);
    let empty = array(&[0, 3], &[0_u16; 0]);
    let options = SaveOptions::new().metadata([
        ("title", "wind"),
        ("attribute:grid/u#dimensions", r#"["t", "y", "x"]"#),
        ("attribute:grid/u#units", "m/s"),
    ]);
    let tensors = [("grid/u", u), ("step", scalar), ("none", empty)];
    save(dir.at("a.safetensors"), tensors, &options).unwrap();
    let refs = refs(dir.path(), &["a.safetensors", "--chunk", "50"]);
    assert_eq!(
        (&refs[".zgroup"], &refs["grid/.zgroup"]),
        (&json!({"zarr_format": 2}), &refs[".zgroup"])
    );
    assert_eq!(refs[".zattrs"], json!({"title": "wind"}));
    let array = json!({
        "zarr_format": 2, "shape": [4, 2, 3], "chunks": [2, 2, 3], "dtype": "<f4", "order": "C",
        "fill_value": null, "compressor": null, "filters": null,
    });
    assert_eq!(refs["grid/u/.zarray"], array);
    let attributes = json!({"units": "m/s", "_ARRAY_DIMENSIONS": ["t", "y", "x"]});
    assert_eq!(refs["grid/u/.zattrs"], attributes);
    let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let found = [bytes(&refs["grid/u/0.0.0"]), bytes(&refs["grid/u/1.0.0"])].concat();
    assert_eq!(found, expected);
    assert_eq!(bytes(&refs["step/0"]), 7_i64.to_le_bytes());
    assert_eq!(
        (&refs["step/.zarray"]["shape"], &refs["step/.zarray"]["chunks"]),
        (&json!([]), &json!([]))
    );
    assert_eq!(refs["none/.zarray"]["chunks"], json!([1, 3]));
    assert_eq!(refs["none/.zattrs"]["_ARRAY_DIMENSIONS"], json!(["none.dim0", "none.dim1"]));
    assert!(refs.get("none/0.0").is_none());
}

#[test]
fn dtypes_that_numpy_lacks_are_integers_or_bytes() {
    let dir = temp_dir();
    let data = [0x80, 0x3f, 0x00, 0x40];
    let view = |dtype, shape| TensorView::new(dtype, shape, &data).unwrap();
    let tensors = [
        ("bf16", view(Dtype::BF16, &[1, 2])),
        ("f8", view(Dtype::F8_E5M2, &[4])),
        ("f4", view(Dtype::F4, &[2, 4])),
    ];
    save(dir.at("a.safetensors"), tensors, &SaveOptions::new()).unwrap();
    let refs = refs(dir.path(), &["a.safetensors"]);
    for (name, dtype, shape, of) in [
        ("bf16", "<u2", json!([1, 2]), "BF16"),
        ("f8", "|u1", json!([4]), "F8_E5M2"),
        ("f4", "|u1", json!([4]), "F4"),
    ] {
        let array = &refs[format!("{name}/.zarray")];
        assert_eq!((&array["dtype"], &array["shape"]), (&json!(dtype), &shape));
        assert_eq!(refs[format!("{name}/.zattrs")]["safetensors_dtype"], of);
        let key = if name == "bf16" { "bf16/0.0".to_owned() } else { format!("{name}/0") };
        assert_eq!(bytes(&refs[key]), data);
    }
    assert_eq!(refs["f4/.zattrs"]["safetensors_shape"], json!([2, 4]));
}

#[test]
fn coordinates_name_their_dimension_and_tied_names_have_the_same_bytes() {
    let dir = temp_dir();
    let u = array(&[2, 3], &[1_u8, 2, 3, 4, 5, 6]);
    let t = array(&[2], &[7_u8, 8]);
    let options = SaveOptions::new().metadata([
        ("attribute:u#dimensions", r#"["t", "v"]"#),
        ("attribute:t#units", "s"),
        ("tied", "u"),
    ]);
    // The tensor `v` has another length than the dimension.
    save(dir.at("a.safetensors"), [("u", u), ("t", t), ("v", t)], &options).unwrap();
    let refs = refs(dir.path(), &["a.safetensors"]);
    assert_eq!(refs["t/.zattrs"], json!({"units": "s", "_ARRAY_DIMENSIONS": ["t"]}));
    assert_eq!(refs["v/.zattrs"], json!({"_ARRAY_DIMENSIONS": ["v.dim0"]}));
    assert_eq!((&refs["tied/.zarray"], &refs["tied/0.0"]), (&refs["u/.zarray"], &refs["u/0.0"]));
    assert_eq!(bytes(&refs["tied/0.0"]), [1, 2, 3, 4, 5, 6]);
    assert_eq!(refs[".zattrs"], json!({}));
}

#[test]
fn a_manifest_of_shards_names_them_and_never_replaces_the_index() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    let found = refs(dir.path(), &["model.safetensors.index.json"]);
    let ends = |name: &str| ends_with(name.to_owned());
    for (key, shard) in [("a/0", "00001"), ("b/0.0", "00002")] {
        let file = found[key][0].as_str().unwrap();
        assert!(Path::new(file).is_absolute());
        assert!(ends(&format!("model-{shard}-of-00002.safetensors")).eval(file), "{file}");
    }
    assert_eq!(bytes(&found["b/0.0"]), [1_u16, 2, 3].map(u16::to_le_bytes).concat());
    dir.write("out.json", "old");
    let index = index.to_str().unwrap();
    let done = starts_with("out.json: 2 tensors, ");
    dir.run(&["manifest", index, "-o", "out.json", "--force"]).success().stdout(done).stderr("");
    let written: Value = serde_json::from_slice(&dir.read("out.json")).unwrap();
    assert_eq!(written["refs"]["a/0"], found["a/0"]);
    // The index is not replaced by the manifest of its files.
    dir.run(&["manifest", index, "-o", index]).code(2);
}

/// Only a manifest with `templates` has texts in double braces replaced.
#[test]
fn a_path_may_look_like_a_template() {
    let dir = temp_dir();
    let name = "{{a}} b%20.safetensors";
    let below = dir.at("{{u}}");
    fs::create_dir(&below).unwrap();
    small_file(&below, name);
    let path = native(&format!("{{{{u}}}}/{name}"));
    let found = refs(dir.path(), &[&path]);
    let file = found["embed.weight/0.0"][0].as_str().unwrap();
    assert!(file.ends_with(&path), "{file}");
    assert_eq!(bytes(&found["mask/0"]), [1_i64, 0].map(i64::to_le_bytes).concat());
    let args = ["manifest", &path, "-o", "out.json"];
    dir.run(&args).success();
    let written: Value = serde_json::from_slice(&dir.read("out.json")).unwrap();
    assert_eq!(written.as_object().unwrap().keys().collect::<Vec<_>>(), ["refs", "version"]);
}

#[test]
fn tensors_that_zarr_cannot_hold_are_refused() {
    let dir = temp_dir();
    let one = array(&[1], &[1_u8]);
    for (names, expected) in [
        (&["a", "a/b"][..], "tensor \"a/b\": Zarr does not allow the name: it is below another"),
        (&["a//b"], "a part of it is empty"),
        (&[""], "a part of it is empty"),
        (&["x/../y"], "tensor \"x/../y\": Zarr does not allow the name"),
        (&["a/.zarray"], "begins with .z"),
    ] {
        let tensors = names.iter().map(|name| (*name, one));
        save(dir.at("a.safetensors"), tensors, &SaveOptions::new()).unwrap();
        dir.run("manifest a.safetensors").fails(1, expected).stdout("");
    }
    let wrong = SaveOptions::new().metadata([("attribute:a#dimensions", "t")]);
    save(dir.at("a.safetensors"), [("a", one)], &wrong).unwrap();
    dir.run("manifest a.safetensors")
        .fails(1, "the attribute \"dimensions\" should be a JSON array of 1");
    dir.run("manifest -").code(2);
    small_file(dir.path(), "model.safetensors");
    dir.run("extract model.safetensors mask -o a.npy").success();
    dir.run("manifest a.npy").fails(1, "`safetensors convert` makes such files");
}
