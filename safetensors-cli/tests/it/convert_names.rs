//! `safetensors convert`: metadata that gives tensors other names or only seems to, and duplicate
//! names.

use safetensors_core::SafeTensors;

use crate::fixtures::*;

/// A file of these tensors, each of 2 numbers.
fn file(dir: &Path, name: &str, tensors: &[&str], metadata: &[(&str, &str)]) {
    let view = array(&[2], &[1.0_f32, 2.0]);
    let options = quick().metadata(metadata.iter().copied());
    save(dir.at(name), tensors.iter().map(|name| (name, view)), &options).unwrap();
}

/// The content of `out.safetensors`: tensors with their dtypes, and metadata.
fn said(dir: &Path) -> (Vec<String>, Vec<String>) {
    let file = SafeTensors::parse(dir.read("out.safetensors")).unwrap();
    let mut tensors: Vec<_> =
        file.tensors().map(|tensor| format!("{} {}", tensor.name(), tensor.dtype())).collect();
    tensors.sort();
    (tensors, file.metadata().iter().map(|(key, value)| format!("{key}={value}")).collect())
}

fn check(dir: &Path, args: &[&str], tensors: &[&str], metadata: &[&str]) {
    dir.convert(&[&["in.safetensors", "out.safetensors", "--force"], args].concat()).success();
    let expected = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    assert_eq!(said(dir), (expected(tensors), expected(metadata)), "{args:?}");
}

#[test]
fn format_and_model_spec_are_never_names() {
    let dir = temp_dir();
    file(
        dir.path(),
        "in.safetensors",
        &["pt", "w"],
        &[("format", "pt"), ("modelspec.architecture", "w")],
    );
    let metadata = ["format=pt", "modelspec.architecture=w"];
    let cases: [(&[&str], &[&str]); 4] = [
        (&[], &["pt F32", "w F32"]),
        (&["--cast", "pt=f16"], &["pt F16", "w F32"]),
        (&["-f", "pt"], &["pt F32"]),
        (&["--prefix", "m."], &["m.pt F32", "m.w F32"]),
    ];
    for (args, tensors) in cases {
        check(dir.path(), args, tensors, &metadata);
    }
}

#[test]
fn other_names_follow_their_tensor() {
    let dir = temp_dir();
    file(dir.path(), "in.safetensors", &["model", "w"], &[("base", "model")]);
    let check = |args: &[&str], tensors: &[&str], metadata: &[&str]| {
        check(dir.path(), args, tensors, metadata)
    };
    check(&["--drop", "model"], &["w F32"], &[]);
    check(&["--drop", "base"], &["model F32", "w F32"], &[]);
    check(&["-f", "model"], &["model F32"], &["base=model"]);
    check(&["--cast", "model=f16"], &["model F16", "w F32"], &["base=model"]);
    check(&["--dtype", "bf16", "--cast", "model=keep"], &["model F32", "w BF16"], &["base=model"]);
    check(&["--prefix", "m."], &["m.model F32", "m.w F32"], &["m.base=m.model"]);
    // Names that are selected by themselves are tensors.
    check(&["-f", "base"], &["base F32"], &[]);
    check(&["--dtype", "bf16", "--cast", "base=keep"], &["base F32", "model BF16", "w BF16"], &[]);
    check(&["--cast", "base=f64"], &["base F64", "model F32", "w F32"], &[]);

    let warning = "warning: out.npz: NumPy's files hold no metadata; omitted: base\n";
    let done = dir.convert("in.safetensors out.npz").success().stderr(warning);
    done.stdout("out.npz: 2 tensors, 16 B\n");
    let done = dir.convert("in.safetensors out.npz -n --force").success();
    done.stdout(contains("base").not());
    dir.convert("in.safetensors out.npy -f model").success();
    dir.convert("in.safetensors out.npz --drop model --force")
        .success()
        .stdout("out.npz: 1 tensor, 8 B\n");
}

#[test]
fn a_duplicate_name_is_reported_with_its_inputs() {
    let dir = temp_dir();
    file(dir.path(), "in.safetensors", &["w"], &[("head", "w")]);
    file(dir.path(), "more.safetensors", &["w", "head"], &[]);
    for output in ["out.safetensors", "out", "out.npz"] {
        let twice = |args: &[&str], from: &str| {
            let args = [&["in.safetensors", "more.safetensors", output], args].concat();
            let next = contains("--rename").and(contains("--prefix"));
            dir.convert(&args).code(1).stderr(contains(from).and(next));
        };
        twice(
            &["--drop", "head"],
            "duplicate tensor name: w of in.safetensors and w of more.safetensors; ",
        );
        twice(
            &["--rename", "^w$", "head", "-f", "w"],
            ": w of in.safetensors and w of more.safetensors; ",
        );
    }
    dir.convert("more.safetensors b.safetensors --prefix b.").success();
    dir.convert("in.safetensors b.safetensors out.safetensors").success();
    assert_eq!(said(dir.path()).0, ["b.head F32", "b.w F32", "w F32"]);
}
