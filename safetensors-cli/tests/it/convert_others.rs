//! The files that `safetensors convert` takes along from a directory, in addition to its tensors.

use crate::fixtures::*;
use crate::lora::one_module;

/// Makes a directory with a model of a single F32 matrix, and these files next to it, each with its name
/// as text.
fn model(dir: &Path, name: &str, files: &[&str]) -> PathBuf {
    let path = dir.at(name);
    fs::create_dir(&path).unwrap();
    let numbers: Vec<f32> = (0..64 * 64).map(|i| (i % 97) as f32 - 48.0).collect();
    let tensors = [("model.up.weight", array(&[64, 64], &numbers))];
    save(path.join("model.safetensors"), tensors, &quick()).unwrap();
    for file in files {
        fs::create_dir_all(path.join(file).parent().unwrap()).unwrap();
        fs::write(path.join(file), file).unwrap();
    }
    path
}

const CONFIG: &str = "{\"model_type\": \"llama\",  \"torch_dtype\": \"float32\"}\n";

/// Files that belong to a model, and files that do not.
const TAKEN: [&str; 8] = [
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "LICENSE",
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
];
const LEFT: [&str; 9] = [
    ".git/HEAD",
    ".gitattributes",
    "latest",
    "manifest.json",
    "model.sig",
    "onnx/model.onnx",
    "optimizer.pt",
    "pytorch_model.bin",
    "venv/lib/credentials.json",
];

/// The file of sentence-transformers that names the folders of layers.
const MODULES: &str = r#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]"#;

fn with_all(dir: &Path) -> PathBuf {
    let model = model(dir, "model", &[&TAKEN[..], &LEFT].concat());
    fs::write(model.join("config.json"), CONFIG).unwrap();
    fs::write(model.join("modules.json"), MODULES).unwrap();
    model
}

/// The names of all files in a directory and below it.
fn all(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for name in names_in(path) {
        match path.join(&name) {
            folder if folder.is_dir() => {
                names.extend(all(&folder).iter().map(|below| format!("{name}/{below}")));
            }
            _ => names.push(name),
        }
    }
    names
}

#[test]
fn a_converted_directory_is_a_model() {
    let dir = temp_dir();
    with_all(dir.path());
    let adapter = one_module(dir.path(), "model.up", [64, 64], 1.0);
    let lora = format!("--lora {adapter}");
    let mut expected = [&TAKEN[..], &["config.json", "modules.json"]].concat();
    expected.sort_unstable();
    let named = "; copied: LICENSE, chat_template.jinja, generation_config.json and 6 more; \
                 not copied: latest, manifest.json, model.sig and 4 more\n";
    for (out, options) in [
        ("same", ""),
        ("bf16", "--dtype bf16"),
        ("shards", "--max-shard-size 1KB"),
        ("fp8", "--quantize fp8-channel"),
        ("merged", &*lora),
        ("ranks", "--ranks 2 --rule *=split:0"),
        ("dcp", "--ranks 2 --rule *=split:0 --dcp"),
    ] {
        let line = format!("model {out} {options}");
        let with = ", with config.json and 9 other files";
        let planned = dir.convert(&format!("{line} --dry-run")).quiet();
        planned.stdout(contains(with).and(ends_with(named)));
        assert!(!dir.at(out).exists());
        dir.convert(&line).quiet().stdout(contains(with).and(ends_with(named)));
        let mut found = all(&dir.at(out));
        found.retain(|name| name.contains('/') || !name.contains("safetensors"));
        found.retain(|name| !name.starts_with("rank"));
        assert_eq!(found, expected, "{out}");
        for name in TAKEN {
            assert_eq!(dir.text(dir.at(out).join(name)), name);
        }
    }
    let configs =
        ["same", "shards", "bf16", "merged"].map(|out| dir.text(out.to_owned() + "/config.json"));
    assert_eq!(configs, [CONFIG, CONFIG, &CONFIG.replace("float32", "bfloat16"), CONFIG]);
    assert!(dir.text("fp8/config.json").contains("quantization_config"));
    // The settings of quantised weights go along with them, and go with them.
    fs::write(dir.at("fp8/hf_quant_config.json"), "{}").unwrap();
    dir.convert("fp8 codes").success();
    assert_eq!(dir.text("codes/config.json"), dir.text("fp8/config.json"));
    assert!(dir.at("codes/hf_quant_config.json").exists());
    dir.convert("fp8 numbers --dtype bf16").quiet().stdout(contains("hf_quant_config.json"));
    assert!(!dir.text("numbers/config.json").contains("quant"));
    assert!(!dir.at("numbers/hf_quant_config.json").exists());
    dir.convert("model bare --no-other-files --dtype bf16").quiet().stdout(ends_with("1 file\n"));
    assert_eq!(all(&dir.at("bare")), ["model.safetensors"]);
}

/// Such as a directory of downloads, or of a program.
#[test]
fn a_directory_that_is_no_models_takes_nothing_along() {
    let dir = temp_dir();
    let other = ["credentials.json", "cv.pdf", "node_modules/a/config.json", "venv/lib/a.py"];
    model(dir.path(), "downloads", &other);
    let left = "in 1 file; not copied: credentials.json, cv.pdf, node_modules and 1 more\n";
    dir.convert("downloads out --dtype bf16").quiet().stdout(ends_with(left));
    assert_eq!(all(&dir.at("out")), ["model.safetensors"]);
}

/// The layers of sentence-transformers are loaded from their folders.
#[test]
fn a_layer_that_is_too_large_is_warned_of() {
    let dir = temp_dir();
    let model = with_all(dir.path());
    let weights = model.join("2_Dense/model.safetensors");
    fs::File::create(weights).unwrap().set_len((256 << 20) + 1).unwrap();
    let name = native("2_Dense/model.safetensors");
    let warning = format!("out: nothing can load it without {name}, which modules.json or ");
    dir.convert("model out").warns(&warning).stdout(contains(format!("not copied: {name}, ")));
    assert!(!dir.at("out/2_Dense/model.safetensors").exists());
}

/// They are often left in a directory, and a converted one is often published.
#[test]
fn files_with_credentials_stay_behind() {
    let dir = temp_dir();
    let secret = ["credentials.json", "hf_token.txt", "key.pem", "token", ".env"];
    let others =
        [&["tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"], &secret[..]];
    model(dir.path(), "in", &others.concat());
    let left = "; not copied: credentials.json, hf_token.txt, key.pem and 1 more\n";
    dir.convert("in out --dtype bf16").quiet().stdout(ends_with(left));
    let kept = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(all(&dir.at("out")), [&["model.safetensors"], &kept[..]].concat());
}

/// A pipeline of diffusers next to all of its weights in one file.
#[test]
fn parts_of_a_pipeline_that_do_not_go_along_are_warned_of() {
    let dir = temp_dir();
    let model = model(dir.path(), "in", &["scheduler/scheduler_config.json"]);
    let index = r#"{"_class_name": "Any", "unet": ["a", "b"], "scheduler": ["a", "c"]}"#;
    fs::write(model.join("model_index.json"), index).unwrap();
    fs::create_dir(model.join("unet")).unwrap();
    small_file(&model, "unet/diffusion_pytorch_model.safetensors");
    let warning = "out: nothing can load it without unet, which modules.json or model_index.json";
    dir.convert("in out --dtype bf16").warns(warning).stdout(ends_with("; not copied: unet\n"));
    assert!(dir.at("out/scheduler/scheduler_config.json").exists());
}

/// diffusers finds the shards of a variant by an index of another name than ours.
#[test]
fn shards_of_a_variant_are_not_replaced_in_place() {
    let dir = temp_dir();
    fs::create_dir(dir.at("in")).unwrap();
    let name = "diffusion_pytorch_model.fp16-00001-of-00001.safetensors";
    small_file(&dir.at("in"), name);
    let index = "in/diffusion_pytorch_model.safetensors.index.fp16.json";
    let names = dir.open(format!("in/{name}"));
    let names: Vec<_> = names.tensors().map(|it| format!("{:?}: {name:?}", it.name())).collect();
    dir.write(index, format!("{{\"weight_map\": {{{}}}}}", names.join(", ")));
    let before = all(&dir.at("in"));
    let refused = "in: the shards of a variant are not replaced, because";
    dir.convert(&[index, "in", "--force"]).fails(1, refused);
    assert_eq!(all(&dir.at("in")), before);
    dir.convert(&[index, "out"]).quiet();
    assert_eq!(all(&dir.at("out")), ["diffusion_pytorch_model.safetensors"]);
}

#[test]
fn a_file_of_a_model_takes_nothing_along() {
    let dir = temp_dir();
    with_all(dir.path());
    dir.convert("model/model.safetensors out --dtype bf16").quiet();
    assert_eq!(all(&dir.at("out")), ["model.safetensors"]);
    dir.convert("model out.safetensors --dtype bf16").quiet();
    assert!(!dir.at("config.json").exists());
}

/// All files of the model are already there, and only the changes are written.
#[test]
fn a_directory_that_is_converted_in_place_keeps_its_files() {
    let dir = temp_dir();
    let model = with_all(dir.path());
    let before = all(&model);
    for name in ["manifest.json", "model.sig"] {
        fs::remove_file(model.join(name)).unwrap();
    }
    dir.convert("model model --dtype f64").quiet().stdout(ends_with(", with config.json\n"));
    assert_eq!(dir.text("model/config.json"), CONFIG.replace("float32", "float64"));
    dir.convert("model ./model/ --max-shard-size 1KB").quiet().stdout(ends_with("1 file\n"));
    dir.convert("model model --dtype f32").fails(1, "model is an input, and 1 of its 1 tensor");
    for name in ["manifest.json", "model.sig"] {
        fs::write(model.join(name), name).unwrap();
    }
    assert_eq!(all(&model), before);
}

#[test]
fn files_of_another_model_are_replaced_after_a_question_only() {
    for (other, has_model) in
        [("tokenizer.json", false), ("1_Pooling/config.json", false), ("", true)]
    {
        let dir = temp_dir();
        with_all(dir.path());
        let out = match has_model {
            true => model(dir.path(), "out", &["notes.txt"]),
            false => dir.at("out"),
        };
        let name = if has_model { "tokenizer.json" } else { other };
        fs::create_dir_all(out.join("1_Pooling")).unwrap();
        fs::write(out.join(name), "of another").unwrap();
        fs::write(out.join("LICENSE"), "LICENSE").unwrap();
        let held = if has_model { "1 tensor" } else { "1 file (" };
        for options in ["", " -n"] {
            dir.convert(&format!("model out{options}"))
                .fails(1, format!("out exists: it has {held}"));
        }
        dir.convert("model out -n --force").success().stdout(contains("would replace out ("));
        assert_eq!(dir.text(out.join(name)), "of another");
        dir.convert("model out --force").success();
        assert_eq!(dir.text(out.join(name)), name);
        assert_eq!(out.join("notes.txt").exists(), has_model);
    }
    // Equal bytes are nothing to ask about.
    let dir = temp_dir();
    with_all(dir.path());
    fs::create_dir(dir.at("out")).unwrap();
    for (name, text) in [("LICENSE", "LICENSE"), ("config.json", CONFIG)] {
        dir.write(dir.at("out").join(name), text);
    }
    dir.convert("model out").quiet().stdout(contains(", with 8 other files;"));
    assert_eq!(all(&dir.at("out")).len(), 11);
}

/// PEFT and diffusers find a file by its name.
#[test]
fn a_directory_keeps_the_name_that_its_library_loads() {
    for (name, is_kept) in [
        ("adapter_model.safetensors", true),
        ("diffusion_pytorch_model.fp16.safetensors", true),
        ("pytorch_lora_weights.safetensors", true),
        ("weights.safetensors", false),
    ] {
        let dir = temp_dir();
        let model = model(dir.path(), "in", &["adapter_config.json"]);
        fs::rename(model.join("model.safetensors"), model.join(name)).unwrap();
        let expected = if is_kept { name.replace(".fp16", "") } else { "model.safetensors".into() };
        let expected = ["adapter_config.json", &expected];
        dir.convert("in out --dtype bf16").quiet().stdout(contains(", with 1 other file"));
        assert_eq!(all(&dir.at("out")), expected);
        dir.convert("out out --dtype f32").quiet();
        assert_eq!(all(&dir.at("out")), expected);
        dir.convert("out out --dtype bf16").fails(1, "; --force replaces it");
        dir.convert("in out --dtype bf16").fails(1, "out exists: it has 1 tensor");
        // In place, the variant stays the variant.
        if is_kept {
            dir.convert("in in --dtype bf16 --force").quiet();
            assert_eq!(all(&dir.at("in")), ["adapter_config.json", name]);
            assert_eq!(dir.open("in").tensors().next().unwrap().dtype(), Dtype::BF16);
        }
    }
}

#[test]
fn several_directories_take_nothing_along() {
    let dir = temp_dir();
    with_all(dir.path());
    model(dir.path(), "other", &["README.md"]);
    small_file(dir.path(), "in.safetensors");
    dir.convert("model other out --drop 'model.*' --prefix x").fails(1, "no tensor is left");
    dir.convert("other renamed --prefix b.").success();
    dir.convert("model renamed out").warns("the other files of 2 directories are not copied");
    assert_eq!(all(&dir.at("out")), ["model.safetensors"]);
    dir.convert("in.safetensors model both").quiet().stdout(contains("config.json and 9 other"));
}

#[test]
fn the_output_may_be_in_the_input() {
    let dir = temp_dir();
    let model = with_all(dir.path());
    for _ in 0..2 {
        dir.convert("model model/bf16 --dtype bf16 --force").success();
        assert_eq!(all(&dir.at("model/bf16")).len(), 11);
        fs::remove_file(model.join("bf16/model.safetensors")).unwrap();
    }
    fs::rename(&model, dir.at("bf16")).unwrap();
    fs::create_dir(dir.at("out")).unwrap();
    fs::rename(dir.at("bf16"), dir.at("out/in")).unwrap();
    dir.convert("out/in out").success();
    assert_eq!(all(&dir.at("out/in/bf16")).len(), 10);
}

/// A converted model must not lack a file because it could not be read.
#[cfg(unix)]
#[test]
fn unreadable_and_irregular_files_are_not_skipped_silently() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    let dir = temp_dir();
    let model = model(dir.path(), "model", &["params.json", "tokenizer.json"]);
    dir.write("secret", "s");
    symlink("../secret", model.join("README.md")).unwrap();
    symlink("tokenizer.json", model.join("vocab.json")).unwrap();
    fs::File::create(model.join("data.txt")).unwrap().set_len((256 << 20) + 1).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(model.join("pipe")).status().unwrap();
    assert!(fifo.success());
    // Other systems refuse this name.
    let is_named = fs::write(model.join(OsStr::from_bytes(b"\xff")), "x").is_ok();
    let more = if is_named { " and 1 more" } else { "" };
    let left = format!(
        "with 3 other files; copied: params.json, tokenizer.json, vocab.json; not copied: \
         README.md, data.txt, pipe{more}\n"
    );
    dir.convert("model out").quiet().stdout(ends_with(left));
    let expected = ["model.safetensors", "params.json", "tokenizer.json", "vocab.json"];
    assert_eq!(all(&dir.at("out")), expected);
    assert!(!dir.at("out/vocab.json").is_symlink());

    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(model.join("tokenizer.json"), mode(0o000)).unwrap();
    fs::create_dir(dir.at("free")).unwrap();
    fs::set_permissions(dir.at("free"), mode(0o777)).unwrap();
    let mut command = Command::from_std(as_a_user(dir.path()));
    let refused = command.args(["convert", "model", "free/out"]).assert();
    let what = contains("model/tokenizer.json: Permission denied")
        .and(contains("--no-other-files leaves such files behind"));
    refused.code(1).stderr(what);
    assert!(names_in(&dir.at("free")).is_empty());
}

#[test]
fn a_config_that_cannot_be_understood_is_copied_with_a_warning() {
    let dir = temp_dir();
    let model = model(dir.path(), "model", &["config.json"]);
    dir.convert("model out --dtype bf16").warns("; it is copied unchanged");
    assert_eq!(dir.text("out/config.json"), "config.json");
    fs::remove_file(model.join("config.json")).unwrap();
    dir.convert("model other --dtype bf16").quiet();
}

#[test]
fn the_ending_of_a_new_output_is_a_known_one_or_none() {
    let dir = temp_dir();
    model(dir.path(), "model", &[]);
    for (out, file) in [
        ("x.safetensor", "x.safetensors"),
        ("a/model.st", "a/model.safetensors"),
        // A blank at the end is a slip.
        ("x.safetensors ", "x.safetensors"),
        ("x.npz ", "x.safetensors"),
    ] {
        let (out, file) = (native(out), native(file));
        dir.convert(&["model", &out]).fails(2, format!("{file} is a file, and {out}/ a directory"));
    }
    assert_eq!(names_in(dir.path()), ["model"]);
    for out in ["x.st/", "llama-3.1", "model.fp8", "v1.5-chat", "x.st"] {
        dir.convert(&["model", out, "--force"]).success();
        assert!(dir.at(out).join("model.safetensors").exists(), "{out}");
    }
}
