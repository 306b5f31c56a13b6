//! How the settings next to a model follow the tensors that `safetensors convert` writes.

use safetensors_testing::quantized::Quantized;

use crate::convert::list;
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
    assert_eq!(list(&dir.at("out")), ["config.json", "model.safetensors"]);
    let said = dir.convert("gptq gptq --dtype bf16 --force").err();
    for name in names {
        assert!(said.contains(&format!("{name}: it describes other weights")), "{said}");
    }
}
