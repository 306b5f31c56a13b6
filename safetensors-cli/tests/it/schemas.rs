//! The JSON documents follow the schemas in `schemas/`.
//!
//! The schemas allow more properties, because later versions may add some. Here they are closed, so
//! that a property without a description fails.

use boon::{Compiler, Schemas};
use serde_json::Value;

use crate::fixtures::*;
use crate::other_formats::fixture;
use crate::plan::llama;
use crate::training_epochs::training_run;

/// A schema, the arguments that print such a document, and the exit code.
const CASES: &[(&str, &[&str], i32)] = &[
    ("inspect", &["inspect", "--json", "small.safetensors"], 0),
    ("inspect", &["inspect", "--json", "shards/model.safetensors.index.json"], 0),
    ("inspect", &["inspect", "--json", "empty.safetensors"], 0),
    ("inspect", &["inspect", "--json", "labelled.safetensors"], 0),
    ("inspect", &["inspect", "--json", "hostile.safetensors"], 0),
    ("inspect", &["inspect", "--json", "array.npy"], 0),
    ("inspect", &["inspect", "--json", "run"], 1),
    ("inspect", &["inspect", "--json", "run", "small.safetensors"], 1),
    ("inspect", &["inspect", "--json", "small.safetensors", "cut.safetensors"], 1),
    ("inspect", &["inspect", "--json", "--recursive", "shards"], 0),
    ("verify", &["verify", "--json", "small.safetensors", "shards", "cut.safetensors"], 1),
    ("verify", &["verify", "--json", "--digests", "array.npy"], 0),
    ("verify", &["verify", "--json", "--finite", "odd.safetensors", "gone"], 1),
    ("verify", &["verify", "--json", "--strict", "--digests", "odd.safetensors"], 1),
    #[cfg(feature = "sign")]
    ("verify-signature", &["verify", "--json", "signed", "--signature", "sig", "--key", "pub"], 0),
    #[cfg(feature = "sign")]
    ("verify-signature", &["verify", "--json", "odd", "--signature", "odd.sig", "--key", "pub"], 1),
    #[cfg(feature = "sign")]
    ("verify-signature", &["verify", "--json", "odd", "--signature", "pub", "--key", "pub"], 1),
    ("show", &["show", "--json", "odd.safetensors", "embed.weight"], 0),
    ("show", &["show", "--json", "odd.safetensors", "none"], 0),
    ("show", &["show", "--json", "small.safetensors", "mask", "[0]"], 0),
    ("stats", &["stats", "--json", "small.safetensors", "cut.safetensors"], 1),
    ("stats", &["stats", "--json", "small.safetensors"], 0),
    ("stats", &["stats", "--json", "--bins", "0", "odd.safetensors"], 0),
    ("stats", &["stats", "--json", "bool.safetensors"], 1),
    ("stats", &["stats", "--json", "arrays.pt"], 1),
    ("diff", &["diff", "--json", "small.safetensors", "small.safetensors"], 0),
    ("diff", &["diff", "--json", "small.safetensors", "odd.safetensors"], 1),
    ("diff", &["diff", "--json", "--headers", "small.safetensors", "odd.safetensors"], 1),
    ("diff", &["diff", "--json", "arrays.pt", "arrays.pt"], 2),
    ("inspect", &["inspect", "--json", "delta"], 0),
    ("inspect", &["inspect", "--json", "delta", "small.safetensors"], 0),
    ("verify", &["verify", "--json", "delta"], 0),
    ("delta-inspect", &["delta", "inspect", "--json", "delta", "theirs"], 0),
    ("plan", &["plan", "--json", "-w", "2", "llama.safetensors"], 0),
    ("plan-file", &["plan", "-o", "-", "-w", "2", "llama.safetensors"], 0),
    ("metadata-get", &["metadata", "get", "--json", "small.safetensors"], 0),
    ("metadata-get", &["metadata", "get", "--json", "odd.safetensors"], 0),
    ("digest", &["digest", "--json", "shards"], 0),
    ("digest", &["digest", "--json", "arrays.pt"], 1),
    ("digest", &["digest", "--json", "--recursive", "shards"], 0),
    ("digest", &["digest", "--json", "small.safetensors", "cut.safetensors"], 1),
    ("digest", &["digest", "--json", "-f", "mask", "small.safetensors"], 0),
    ("digest", &["digest", "--json", "--checkpoint", "shards"], 0),
    ("digest", &["digest", "--json", "--files", "-r", "shards"], 0),
    #[cfg(feature = "remote")]
    ("cache-list", &["cache", "list", "--json", "--cache-dir", "hub"], 0),
    #[cfg(feature = "remote")]
    ("cache-size", &["cache", "size", "--json", "--cache-dir", "hub"], 0),
    #[cfg(feature = "remote")]
    ("cache-verify", &["cache", "verify", "--json", "--cache-dir", "hub"], 1),
    #[cfg(feature = "remote")]
    ("cache-verify", &["cache", "verify", "--json", "--cache-dir", "hub", "owner/odd"], 0),
];

/// The files of the cases.
fn make_files(dir: &Path) {
    // A blob that does not match the hash in its name, and one without a hash in its name.
    for (repo, blob) in [("name", "0".repeat(40)), ("odd", "odd".to_owned())] {
        let blobs = dir.at(format!("hub/models--owner--{repo}/blobs"));
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(blob), "x").unwrap();
    }
    small_file(dir, "small.safetensors");
    fs::copy(fixture("pytorch/refused/arrays.pt"), dir.at("arrays.pt")).unwrap();
    training_run(&dir.at("run"));
    fs::create_dir(dir.at("shards")).unwrap();
    sharded(&dir.at("shards"));
    crate::delta::make_deltas(dir);
    #[cfg(feature = "sign")]
    signed_models(dir);
    hostile_file(dir);
    llama(dir, "llama.safetensors");
    raw_file(&dir.at("empty.safetensors"), "{}", 0);
    let header = r#"{"__metadata__":{"attribute:t#dimensions":"[\"x\"]"},
        "t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    raw_file(&dir.at("labelled.safetensors"), header, 2);
    let header = r#"{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    raw_file(&dir.at("cut.safetensors"), header, 1);
    let header = r#"{"b":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
    raw_file(&dir.at("bool.safetensors"), header, 1);
    let mut bytes = dir.read("bool.safetensors");
    *bytes.last_mut().unwrap() = 7;
    dir.write("bool.safetensors", bytes);
    let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    let array = format!("\u{1}\0\u{76}\0{dict:<117}\n\0\0\0\0");
    dir.write("array.npy", [b"\x93NUMPY", array.as_bytes()].concat());
    // NaN and infinity against numbers, another shape, another dtype, and no elements.
    let odd = [
        (
            "embed.weight",
            TensorView::from_slice(&[2, 3], &[f32::NAN, f32::INFINITY, -0.0, 3.0, 4.5, 5.0]),
        ),
        ("mask", TensorView::from_slice(&[1, 2], &[1_i64, 0])),
        ("none", TensorView::from_slice(&[0], &[0.0_f64; 0])),
    ];
    let odd = odd.map(|(name, view)| (name, view.unwrap()));
    save(dir.at("odd.safetensors"), odd, &quick()).unwrap();
}

/// Makes a model that matches its signature, and one in which every file differs.
#[cfg(feature = "sign")]
fn signed_models(dir: &Path) {
    for (model, signature) in [("signed", "sig"), ("odd", "odd.sig")] {
        let at = |name: &str| dir.at(model).join(name);
        fs::create_dir(dir.at(model)).unwrap();
        for name in ["a", "b", "c", "left out"] {
            fs::write(at(name), name).unwrap();
        }
        let key = crate::sign::fixture("p256.pem");
        let sign = ["sign", model, "--key", &key, "--signature", signature, "--ignore", "left out"];
        dir.run(&sign).success();
    }
    fs::copy(crate::sign::fixture("p256.pub"), dir.at("pub")).unwrap();
    dir.write("odd/a", "changed");
    fs::rename(dir.at("odd/b"), dir.at("odd/renamed")).unwrap();
    fs::remove_file(dir.at("odd/c")).unwrap();
    dir.write("odd/new", "new");
}

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas").join(name);
    serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap()
}

/// Makes a schema refuse properties that it does not describe.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") && !map.contains_key("additionalProperties") {
                map.insert("additionalProperties".into(), false.into());
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Compiles a schema to a function that checks a document, and returns its problem.
fn compiled(schema: Value) -> impl Fn(&Value) -> Result<(), String> {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    let name = "https://example.com/schema.json";
    compiler.add_resource(name, schema).unwrap();
    let schema = compiler.compile(name, &mut schemas).unwrap();
    move |document| schemas.validate(document, schema).map_err(|error| error.to_string())
}

#[test]
fn documents_follow_their_schemas() {
    let dir = temp_dir();
    make_files(dir.path());
    for &(name, args, code) in CASES {
        let output = dir.run(args).code(code);
        let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let open = schema(name);
        let mut closed = open.clone();
        close(&mut closed);
        let [open, closed] = [open, closed].map(compiled);
        closed(&document).unwrap_or_else(|wrong| panic!("{args:?}: {wrong}\n{document:#}"));

        // The schema is no empty promise: each property is required, and has a type.
        if name == "metadata-get" {
            assert!(open(&serde_json::json!({ "key": 1 })).is_err());
            continue;
        }
        let mut longer = document.clone();
        longer["a later addition"] = 1.into();
        assert!(open(&longer).is_ok() && closed(&longer).is_err(), "{name}");
        for key in document.as_object().unwrap().keys() {
            let mut shorter = document.clone();
            shorter.as_object_mut().unwrap().remove(key);
            assert!(open(&shorter).is_err(), "{name}: {key} is not required");
            let mut other = document.clone();
            other[key] = serde_json::json!({ "no": [[]] });
            assert!(open(&other).is_err(), "{name}: {key} has no type");
        }
    }
}

#[test]
fn every_schema_has_a_case_and_is_in_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let names = fs::read_dir(root.join("schemas")).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> =
        names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    // Without the feature, the commands about the cache only say that it is missing.
    names.retain(|name| cfg!(feature = "remote") || !name.starts_with("cache-"));
    names.retain(|name| cfg!(feature = "sign") || name != "verify-signature");
    names.sort_unstable();
    let mut of_cases: Vec<_> = CASES.iter().map(|&(name, ..)| name).collect();
    of_cases.sort_unstable();
    of_cases.dedup();
    assert_eq!(names, of_cases);
    for name in names {
        let link = format!("(schemas/{name}.json)");
        assert!(readme.contains(&link), "the README has no {link}");
    }
}
