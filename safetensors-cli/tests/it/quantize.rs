//! `safetensors convert --quantize`, and the `config.json` of quantised and dequantised models.

use safetensors_core::LoadOptions;
use safetensors_core::quantized::{LinearLayers, Quantization};
use safetensors_testing::quantized::Quantized;

use crate::fixtures::*;

const CONFIG: &str = "{\n  \"model_type\": \"llama\",\n  \"rms_norm_eps\": 1e-05\n}\n";

/// A directory with a model: matrices of 2 by 64 and 2 by 24, an embedding, and a norm.
fn model(dir: &Path, name: &str) {
    let path = dir.at(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("config.json"), CONFIG).unwrap();
    let numbers: Vec<f32> = (0..128).map(|i| (i as f32 / 20.0).sin()).collect();
    let tensor = |shape: &'static [usize]| array(shape, &numbers[..shape.iter().product()]);
    let tensors = [
        ("model.embed_tokens.weight", tensor(&[2, 64])),
        ("model.up.weight", tensor(&[2, 64])),
        ("model.odd.weight", tensor(&[2, 24])),
        ("model.norm.weight", tensor(&[64])),
    ];
    save(path.join("model.safetensors"), tensors, &quick()).unwrap();
}

/// The names and dtypes, sorted.
fn content(path: &Path) -> Vec<(String, Dtype)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut all: Vec<_> =
        checkpoint.tensors().map(|tensor| (tensor.name().into(), tensor.dtype())).collect();
    all.sort();
    all
}

fn values(path: &Path, name: &str) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path).unwrap().dequantized().unwrap();
    let tensor = checkpoint.tensor(name).unwrap();
    tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap().into_vec().unwrap()
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn weights_are_quantised_and_described() {
    let dir = temp_dir();
    model(dir.path(), "model");
    let numbers = values(&dir.at("model"), "model.up.weight");
    for how in Quantization::ALL {
        let name = &*how.to_string();
        let out = dir.at(name);
        let args = ["model", name, "--quantize", name, "--dtype", "bf16"];
        let planned = format!("would write {how} (");
        dir.convert(&[&args[..], &["--dry-run"]].concat())
            .quiet()
            .stdout(contains(planned).and(contains(", with config.json, ")));
        assert!(!out.exists());
        let report = dir.convert(&[&args[..], &["--report"]].concat()).quiet();
        let report = String::from_utf8(report.get_output().stdout.clone()).unwrap();
        assert!(
            report.contains("\nmodel.up.weight ") && report.contains(&format!("{how}: ")),
            "{report}"
        );
        // Of 2 · 64 + 2 · 64 + 2 · 24 + 64 numbers.
        let is_by_group = matches!(how, Quantization::Nvfp4 | Quantization::Mxfp4);
        let share = if is_by_group { "34.8 %" } else { "47.8 %" };
        let summary = format!(", with config.json, {share} of the bytes of IN quantised\n");
        assert!(report.contains("  34.8 %  ") && report.ends_with(&summary), "{report}");

        let checkpoint = Checkpoint::open(&out).unwrap();
        let weights = checkpoint.quantized_weights().unwrap();
        assert_eq!(weights.len(), if is_by_group { 1 } else { 2 }, "{how}");
        for (name, dtype) in content(&out) {
            let is_plain = name.contains("embed") || name.contains("norm");
            assert_eq!(dtype == Dtype::BF16, is_plain || is_by_group && name.contains("odd"));
        }
        for (read, number) in values(&out, "model.up.weight").iter().zip(&numbers) {
            assert!((read - number).abs() < 0.2, "{how}: {read} {number}");
        }
        let config = text(out.join("config.json"));
        assert!(config.contains("\"rms_norm_eps\": 1e-05"), "{config}");
        let settings: serde_json::Value = serde_json::from_str(&config).unwrap();
        let settings = &settings["quantization_config"];
        let left = settings.get("ignore").or(settings.get("modules_to_not_convert")).unwrap();
        let named = |module: &str| left.as_array().unwrap().iter().any(|it| it == module);
        assert!(named("model.embed_tokens") && named("lm_head") && !named("model.up"), "{config}");
        assert_eq!(named("model.odd"), is_by_group, "{config}");

        // Numbers again.
        let plain = format!("{how}-plain");
        dir.convert(&[name, &plain, "--dtype", "f32"]).quiet();
        assert_eq!(text(dir.at(&plain).join("config.json")), CONFIG);
        let again = values(&dir.at(plain), "model.up.weight");
        assert_eq!(again, values(&out, "model.up.weight"));
    }
}

#[test]
fn patterns_select_the_quantised_weights() {
    let dir = temp_dir();
    model(dir.path(), "model");
    let casts = ["--cast", "*.up.*=keep", "--cast", "*embed*=quantize", "--cast", "*.odd.*=f16"];
    let args = ["model", "out", "--quantize", "int8-channel"];
    dir.convert(&[&args[..], &casts].concat()).quiet();
    let expected = [
        ("model.embed_tokens.weight", Dtype::I8),
        ("model.embed_tokens.weight_scale", Dtype::F32),
        ("model.norm.weight", Dtype::F32),
        ("model.odd.weight", Dtype::F16),
        ("model.up.weight", Dtype::F32),
    ];
    assert_eq!(content(&dir.at("out")), expected.map(|(name, it)| (name.into(), it)));
    dir.convert("model none --quantize nvfp4 --cast '*=keep'")
        .warns("--quantize: no weight is quantised");
    assert_eq!(names_in(&dir.at("none")), ["config.json", "model.safetensors"]);
}

/// Programs read the codes of linear layers only.
#[test]
fn only_linear_layers_are_quantised() {
    let dir = temp_dir();
    let numbers = vec![1.0_f32; 2048];
    let tensor = |shape: &'static [usize]| array(shape, &numbers[..shape.iter().product()]);
    let save = |name: &str, config: Option<&str>| {
        let path = dir.at(name);
        fs::create_dir(&path).unwrap();
        if let Some(config) = config {
            fs::write(path.join("config.json"), config).unwrap();
        }
        let tensors = [
            ("h.0.attn.c_attn.weight", tensor(&[32, 32])),
            ("h.0.SelfAttention.relative_attention_bias.weight", tensor(&[2, 32])),
            ("h.0.SelfAttention.q.weight", tensor(&[32, 32])),
            ("h.0.experts.up_proj", tensor(&[2, 16, 32])),
        ];
        save(path.join("model.safetensors"), tensors, &quick()).unwrap();
    };
    let gpt2 = r#"{"model_type": "gpt2"}"#;
    let starcoder = r#"{"model_type": "gpt_bigcode"}"#;
    for (name, config, is_linear) in
        [("gpt2", Some(gpt2), false), ("starcoder", Some(starcoder), true), ("bare", None, false)]
    {
        save(name, config);
        let out = format!("{name}-out");
        dir.convert(&[name, &out, "--quantize", "int8-channel"]).warns(
            "--quantize: stacked experts stay unchanged, 1 tensor with 32.7 % of the bytes: \
             h.0.experts.up_proj\n",
        );
        let is_codes = |name: &str| {
            let tensors = content(&dir.at(&out));
            tensors.iter().find(|(it, _)| it == name).unwrap().1 == Dtype::I8
        };
        assert!(is_codes("h.0.SelfAttention.q.weight"), "{name}");
        assert!(!is_codes("h.0.SelfAttention.relative_attention_bias.weight"), "{name}");
        assert_eq!(is_codes("h.0.attn.c_attn.weight"), is_linear, "{name}");
        let Some(_) = config else { continue };
        let written = text(dir.at(&out).join("config.json"));
        for module in ["h.0.SelfAttention.relative_attention_bias", "h.0.experts", "lm_head"] {
            assert!(written.contains(&format!("\"{module}\"")), "{written}");
        }
        assert_eq!(!written.contains("\"h.0.attn.c_attn\""), is_linear, "{written}");
    }
}

/// Of a config, only the dtype changes, and how weights are stored.
#[test]
fn a_config_follows_the_dtype() {
    let dir = temp_dir();
    model(dir.path(), "model");
    let config = concat!(
        "{\n  \"model_type\": \"llama\",\n  \"text_config\": {\n    \"dtype\": \"float32\"\n  },\n",
        "  \"time_step_limit\": [0.0, Infinity],\n  \"torch_dtype\": \"float32\"\n}\n"
    );
    dir.write("model/config.json", config);
    let written = |out: &str| text(dir.at(out).join("config.json"));
    dir.convert("model fp8 --quantize fp8-channel").quiet();
    assert!(written("fp8").contains("\"torch_dtype\": \"float32\""));
    let cast = ["--quantize", "fp8-channel", "--dtype", "bf16"];
    dir.convert(&[&["model", "half"], &cast[..]].concat()).quiet();
    let half = written("half");
    assert!(half.contains("\"torch_dtype\": \"bfloat16\"") && half.contains("[0.0, Infinity]"));
    for (from, dtype, expected) in
        [("half", "f32", "float32"), ("half", "f16", "float16"), ("fp8", "bf16", "bfloat16")]
    {
        let out = format!("{from}-{dtype}");
        dir.convert(&[from, &out, "--dtype", dtype]).quiet();
        assert_eq!(written(&out), config.replace("float32", expected), "{out}");
    }
}

/// The head and the embedding are one tensor here, and one of them stays as it is.
#[test]
fn a_name_of_a_tied_weight_may_be_kept() {
    let dir = temp_dir();
    let numbers = [1.0_f32; 128];
    let head = array(&[2, 64], &numbers);
    let options = SaveOptions::new().metadata([("model.embed_tokens.weight", "lm_head.weight")]);
    save(dir.at("in.safetensors"), [("lm_head.weight", head)], &options).unwrap();
    for (quantised, kept) in [("lm_head", "model.embed_tokens"), ("model.embed_tokens", "lm_head")]
    {
        let casts = [format!("{quantised}*=quantize"), format!("{kept}*=keep")];
        let args = ["in.safetensors", "out.safetensors", "--force", "--report"];
        let casts = ["--quantize", "fp8-channel", "--cast", &casts[0], "--cast", &casts[1]];
        let report = dir.convert(&[&args[..], &casts].concat()).success();
        report.stdout(contains(format!("\n{quantised}.weight ")));
        let mut expected = vec![
            (format!("{quantised}.weight"), Dtype::F8_E4M3),
            (format!("{quantised}.weight_scale"), Dtype::F32),
            (format!("{kept}.weight"), Dtype::F32),
        ];
        expected.sort();
        assert_eq!(content(&dir.at("out.safetensors")), expected);
    }
}

#[test]
fn unsuitable_requests_to_quantise_are_refused() {
    let dir = temp_dir();
    model(dir.path(), "model");
    let gptq = Quantized::named("gptq-v1-4bits").directory;
    let gptq = gptq.to_str().unwrap();
    let fails = |args: &[&str], code, message: &str| {
        let files = names_in(dir.path());
        dir.convert(args).fails(code, message.to_owned());
        assert_eq!(names_in(dir.path()), files);
    };
    let fp8 = |out| ["model", out, "--quantize", "fp8-tensor"];
    fails(&fp8("a.npz"), 2, "NumPy's files and burnpack cannot say");
    fails(&[&fp8("out")[..], &["--ranks", "2"]].concat(), 2, "does not go with --ranks");
    fails(&[&fp8("out")[..], &["--keep-quantized"]].concat(), 2, "cannot be used with");
    fails(&["model", "out", "--quantize", "fp9"], 2, "fp8-block128");
    fails(&["model", "out", "--cast", "*=quantize"], 2, "needs --quantize SCHEME");
    fails(&["model", "out", "--report"], 2, "--quantize <SCHEME>");
    let norm = ["--cast", "*norm*=quantize"];
    fails(&[&fp8("out")[..], &norm].concat(), 1, "two dimensions, found shape [64]");
    let kept = [gptq, "out", "--quantize", "fp8-tensor", "--cast", "*=keep"];
    fails(&kept, 1, "is stored as GPTQ and would not be quantised as fp8-tensor");
    dir.write("model/config.json", "[NaN]");
    fails(
        &fp8("out"),
        1,
        "config.json: the settings of quantised weights are wrong: not a JSON obj",
    );
}

#[test]
fn quantised_weights_are_quantised_again() {
    let dir = temp_dir();
    for (name, how) in
        [("gptq-v1-4bits", Quantization::Fp8Block128), ("ct-nvfp4", Quantization::Int8Channel)]
    {
        let fixture = Quantized::named(name);
        let input = fixture.directory.to_str().unwrap();
        let weights = fixture.open().quantized_weights().unwrap();
        dir.convert(&[input, name, "--quantize", &how.to_string()]).quiet();
        let out = dir.at(name);
        let made = Checkpoint::open(&out).unwrap().quantized_weights().unwrap();
        let layers = LinearLayers::new();
        let expected = weights.iter().filter(|it| layers.suits(how, &it.name, &it.shape)).count();
        assert!(expected > 0 && made.len() == expected, "{name}: {made:?}");
        let settings = text(out.join("config.json"));
        assert!(!settings.contains("gptq") && settings.contains("quant_method"), "{settings}");
        for weight in made {
            let (old, new) = (values(&fixture.model(), &weight.name), values(&out, &weight.name));
            let most = old.iter().fold(0.0_f32, |most, it| most.max(it.abs()));
            let is_near = |(old, new): (&f32, &f32)| (old - new).abs() < most / 14.0;
            assert!(old.iter().zip(&new).all(is_near), "{name}: {}", weight.name);
        }
    }
}

#[test]
fn a_config_is_written_where_it_holds() {
    let dir = temp_dir();
    model(dir.path(), "model");
    model(dir.path(), "other");
    let at = |name: &str| dir.at(name);
    let quantize = |args: &[&str]| dir.convert(&[args, &["--quantize", "fp8-tensor"]].concat());
    // One file gets none.
    quantize(&["model", "out.safetensors"]).warns("a directory as OUT");
    // A config.json of another model is not lost.
    fs::create_dir(at("out")).unwrap();
    let other = CONFIG.replace("llama", "gpt");
    fs::write(at("out/config.json"), &other).unwrap();
    quantize(&["model", "out"]).fails(1, "it has 1 file (config.json), ");
    assert_eq!(text(at("out/config.json")), other);
    quantize(&["model", "out", "--force"]).success();
    assert!(text(at("out/config.json")).contains("compressed-tensors"));
    // Inputs with different ones have none in common.
    fs::write(at("other/config.json"), &other).unwrap();
    dir.convert("other renamed --prefix other.").success();
    fs::copy(at("other/config.json"), at("renamed/config.json")).unwrap();
    quantize(&["model", "renamed", "both"]).warns("different ones");
    assert_eq!(names_in(&at("both")), ["model.safetensors"]);
    fs::remove_file(at("renamed/config.json")).unwrap();
    quantize(&["renamed", "bare"]).warns("there is no config.json");
    // In place, the precise numbers are lost.
    quantize(&["model", "model"]).fails(1, "--force replaces it");
    quantize(&["model", "model", "--force"]).quiet();
    assert_eq!(names_in(&at("model")), ["config.json", "model.safetensors"]);
    assert!(text(at("model/config.json")).contains("compressed-tensors"));
    dir.convert("model model --dtype f32 --force").quiet();
    assert_eq!(text(at("model/config.json")), CONFIG);
}
