//! How the settings next to a model follow the tensors that `safetensors convert` writes.

use safetensors_testing::quantized::Quantized;

use crate::convert_gguf::{save_model, tensors};
use crate::fixtures::*;

/// The settings of GPTQ's fixture in the form that AutoGPTQ writes.
const GPTQ: &str = r#"{"bits": 4, "group_size": 32, "desc_act": false, "sym": false}"#;

/// A directory with codes of GPTQ that only `quantize_config.json` describes.
fn gptq(dir: &Path, name: &str) -> PathBuf {
    let path = dir.at(name);
    fs::create_dir(&path).unwrap();
    let fixture = Quantized::named("gptq-v1-4bits").directory;
    fs::copy(fixture.join("model.safetensors"), path.join("model.safetensors")).unwrap();
    fs::write(path.join("config.json"), "{\"model_type\": \"llama\"}\n").unwrap();
    fs::write(path.join("quantize_config.json"), GPTQ).unwrap();
    path
}

#[test]
fn codes_keep_the_file_that_alone_describes_them() {
    let dir = temp_dir();
    gptq(dir.path(), "gptq");
    let file = native("gptq/quantize_config.json");
    for line in [
        "gptq gptq --max-shard-size 1KB",
        "gptq gptq --max-shard-size 2GB --no-other-files",
        "gptq/model.safetensors gptq",
        "gptq out",
        "gptq out --force",
    ] {
        dir.convert(line).quiet();
    }
    assert_eq!(dir.text("out/quantize_config.json"), GPTQ);
    assert_eq!(dir.open("out").quantized_weights().unwrap()[0].scheme, "GPTQ");
    // Another model's file is named, with the one to copy.
    dir.write("out/quantize_config.json", "{\"bits\": 8}");
    dir.convert("gptq out --force --no-other-files").warns(format!(
        "{} does not describe the quantised weights: copy it from {file}",
        native("out/quantize_config.json")
    ));
    dir.convert("gptq gptq --dtype bf16 --force")
        .warns(format!("remove {file}: it describes other weights"));
}

/// Every file from which core reads how weights are quantised is the description of other weights
/// once they are numbers.
#[test]
fn no_file_of_settings_outlives_its_codes() {
    let dir = temp_dir();
    let model = gptq(dir.path(), "gptq");
    let names = ["hf_quant_config.json", "quant_model_description.json", "quanto_qmap.json"];
    for name in names {
        fs::write(model.join(name), "{}").unwrap();
    }
    dir.convert("gptq out --dtype bf16").quiet().stdout(contains("not copied: "));
    assert_eq!(names_in(&dir.at("out")), ["config.json", "model.safetensors"]);
    let said = dir.convert("gptq gptq --dtype bf16 --force").err();
    for name in names {
        assert!(said.contains(&format!("{name}: it describes other weights")), "{said}");
    }
}

/// A directory with a llama of F32 and the settings that say so.
fn llama(dir: &Path) -> PathBuf {
    save_model(dir, tensors());
    write_config(dir, "model", "float32");
    dir.at("model")
}

fn write_config(dir: &Path, name: &str, dtype: &str) {
    dir.write(dir.at(name).join("config.json"), config(dtype));
}

fn config(dtype: &str) -> String {
    format!("{{\"hidden_size\": 32,\n  \"torch_dtype\": \"{dtype}\"}}\n")
}

/// Numbers of codes have no dtype before they are written.
#[test]
fn the_dtype_in_the_settings_is_the_written_one() {
    let dir = temp_dir();
    save_model(dir.path(), tensors());
    fs::create_dir(dir.at("gguf")).unwrap();
    dir.convert("model gguf/q8.gguf --quantize q8_0 --no-tokenizer").success();
    gptq(dir.path(), "gptq");
    for input in ["gguf", "gptq"] {
        write_config(dir.path(), input, "bfloat16");
        for (dtype, torch) in [("f32", "float32"), ("bf16", "bfloat16"), ("f16", "float16")] {
            let out = format!("{input}-{dtype}");
            dir.convert(&format!("{input} {out} --dtype {dtype}")).quiet();
            let found = dir.text(dir.at(&out).join("config.json"));
            assert!(found.contains(&format!("\"torch_dtype\": \"{torch}\"")), "{out}: {found}");
        }
    }
    // No model is computed in these.
    for input in ["model", "gguf", "gptq"] {
        write_config(dir.path(), input, "bfloat16");
        dir.convert(&format!("{input} {input}-fp8 --dtype fp8")).warns(
            "the weights are stored as F8_E4M3, and config.json keeps the dtype bfloat16, in which",
        );
    }
}

/// The settings are the ones of the model that the directory opens as, however IN names it.
#[test]
fn settings_next_to_the_input_follow_a_directory() {
    let dir = temp_dir();
    llama(dir.path());
    for (input, dtype, torch) in [
        ("model/model.safetensors", "bf16", "bfloat16"),
        ("model/model.safetensors.index.json", "f64", "float64"),
        ("model/model.safetensors.index.json", "f16", "float16"),
    ] {
        let line = format!("{input} model --max-shard-size 10KB --dtype {dtype} --force");
        dir.convert(&line).quiet();
        assert_eq!(dir.text("model/config.json"), config(torch), "{line}");
    }
    let dir = temp_dir();
    llama(dir.path());
    dir.convert("model/model.safetensors model").quiet();
    assert_eq!(dir.text("model/config.json"), config("float32"));
    // Settings that did not describe the input are not changed, but named.
    fs::create_dir(dir.at("out")).unwrap();
    write_config(dir.path(), "out", "float16");
    dir.convert("model/model.safetensors out --dtype bf16").warns("still has the dtype float16");
    assert_eq!(dir.text("out/config.json"), config("float16"));
}

/// A file is written alone, so its settings are named.
#[test]
fn settings_that_a_file_contradicts_are_named() {
    let dir = temp_dir();
    llama(dir.path());
    let said = format!(
        "{} still has the dtype float32: set it to bfloat16, as the weights are stored now",
        native("model/config.json")
    );
    let file = "model/model.safetensors";
    dir.convert(&format!("{file} {file}")).quiet();
    dir.convert(&format!("{file} model/small.safetensors --dtype bf16")).quiet();
    fs::remove_file(dir.at("model/small.safetensors")).unwrap();
    dir.convert(&format!("{file} {file} --dtype bf16 --force")).warns(&said);
    assert_eq!(dir.text("model/config.json"), config("float32"));
    // The same for a directory that is to keep its other files.
    llama(dir.path());
    dir.convert("model model --dtype bf16 --no-other-files --force").warns(&said);
    dir.convert("model model --no-other-files").quiet();
}

#[test]
fn codes_without_other_files_warn_of_missing_settings() {
    let dir = temp_dir();
    llama(dir.path());
    for out in ["model --force", "new"] {
        dir.convert(&format!("model {out} --quantize fp8-channel --no-other-files"))
            .warns("need a config.json that describes quantised weights; without --no-other-files");
    }
    assert_eq!(dir.text("model/config.json"), config("float32"));
}
