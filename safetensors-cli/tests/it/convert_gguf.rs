//! `safetensors convert` with an output of GGUF. `safetensors-formats` tests the content of the
//! file.

use safetensors_core::TensorBuf;
use safetensors_core::save::AtomicFile;
use safetensors_formats::gguf::Writer;
use safetensors_formats::{Options, TensorFile};

use crate::fixtures::*;
use crate::lora::one_module;

const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
    "vocab_size": 8, "rms_norm_eps": 1e-5
}"#;

/// Returns the tensors of a llama with a single layer.
pub(crate) fn tensors() -> Vec<(&'static str, TensorBuf)> {
    let one = |(name, shape): (&'static str, &[usize])| {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect::<Vec<_>>();
        (name, TensorBuf::from_vec(shape.to_vec(), values).unwrap())
    };
    let listed: [(&'static str, &[usize]); 12] = [
        ("model.embed_tokens.weight", &[8, 32]),
        ("model.norm.weight", &[32]),
        ("lm_head.weight", &[8, 32]),
        ("model.layers.0.input_layernorm.weight", &[32]),
        ("model.layers.0.self_attn.q_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.o_proj.weight", &[32, 32]),
        ("model.layers.0.post_attention_layernorm.weight", &[32]),
        ("model.layers.0.mlp.gate_proj.weight", &[48, 32]),
        ("model.layers.0.mlp.up_proj.weight", &[48, 32]),
        ("model.layers.0.mlp.down_proj.weight", &[32, 48]),
    ];
    listed.into_iter().map(one).collect()
}

pub(crate) fn save_model(dir: &Path, tensors: Vec<(&str, TensorBuf)>) {
    let model = dir.at("model");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("config.json"), CONFIG).unwrap();
    let options = quick();
    save(model.join("model.safetensors"), tensors, &options).unwrap();
}

/// A directory with a model in it.
fn model() -> tempfile::TempDir {
    let dir = temp_dir();
    save_model(dir.path(), tensors());
    dir
}

fn opened(dir: &Path, name: &str) -> Checkpoint<TensorFile> {
    safetensors_formats::open(dir.at(name), &Options::new().dequantize(true)).unwrap()
}

#[test]
fn a_model_becomes_a_file_of_gguf() {
    let dir = model();
    let args = ["model", "out.gguf", "--quantize", "q8_0", "--no-tokenizer"];
    let planned = dir.convert(&[&args[..], &["--dry-run"]].concat()).quiet().out();
    assert!(planned.contains("\nblk.0.attn_q.weight       Q8_0  [32, 32]  1.1 kB\n"), "{planned}");
    assert!(planned.contains("\nblk.0.ffn_down.weight     F16   [32, 48]  3.1 kB\n"), "{planned}");
    let summary = "12 tensors, 11.6 kB; 1 of them F16, because their rows are not whole blocks: \
                   blk.0.ffn_down.weight";
    assert!(planned.ends_with(&format!("\nwould write out.gguf ({summary})\n")), "{planned}");
    assert!(!dir.at("out.gguf").exists());
    dir.convert(&args).success().stdout(format!("out.gguf: {summary}\n")).stderr("");

    let read = opened(dir.path(), "out.gguf");
    assert_eq!(read.metadata()["general.architecture"], "llama");
    assert_eq!(read.metadata()["general.name"], "model");
    let back = read.tensor("token_embd.weight").unwrap().read().unwrap().into_vec::<f32>().unwrap();
    let given = tensors().swap_remove(0).1.into_vec::<f32>().unwrap();
    assert!(back.iter().zip(&given).all(|(a, b)| (a - b).abs() < 0.003), "{back:?}");
    dir.run("verify out.gguf").success();

    // The file next to its settings.
    let args = ["model/model.safetensors", "two.gguf", "--quantize", "q4_0", "--no-tokenizer"];
    dir.convert(&args).quiet();
    let file = opened(dir.path(), "two.gguf");
    let stored = file.files()[0].safetensors().source().stored("token_embd.weight").unwrap();
    assert_eq!(stored.type_name, "Q4_0");
}

#[test]
fn numbers_that_no_block_holds_leave_the_old_file() {
    let dir = model();
    let args = ["model", "out.gguf", "--quantize", "q8_0", "--no-tokenizer"];
    dir.convert(&args).success();
    let before = dir.read("out.gguf");
    let mut wrong = tensors();
    let mut values = vec![0.5_f32; 32 * 32];
    values[70] = f32::NAN;
    wrong[6].1 = TensorBuf::from_vec(vec![32, 32], values).unwrap();
    save_model(dir.path(), wrong);
    dir.convert(&[&args[..], &["--force"]].concat()).code(1).stderr(
        starts_with("error: out.gguf: ")
            .or(starts_with("error: tensor "))
            .and(contains("\"model.layers.0.self_attn.v_proj.weight\""))
            .and(contains("element 70 is NaN, which does not fit Q8_0")),
    );
    assert!(before == dir.read("out.gguf"), "the old file is not there");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "a temporary file is left");
}

#[test]
fn quantised_weights_become_numbers_first() {
    let dir = model();
    dir.convert("model fp8 --dtype f8_e4m3").success();
    fs::copy(dir.at("model/config.json"), dir.at("fp8/config.json")).unwrap();
    let path = dir.at("fp8/model.safetensors");
    let scaled = Checkpoint::open(&path).unwrap();
    let mut tensors: Vec<_> =
        scaled.tensors().map(|tensor| (tensor.name().to_owned(), tensor.read().unwrap())).collect();
    let name = "model.layers.0.self_attn.q_proj.weight_scale";
    tensors.push((name.into(), TensorBuf::from_vec(vec![32, 1], vec![2.0_f32; 32]).unwrap()));
    save(&path, tensors, &quick()).unwrap();
    dir.convert("fp8 out.gguf --quantize f32 --no-tokenizer").success();
    let read = opened(dir.path(), "out.gguf");
    let values = |name: &str| read.tensor(name).unwrap().read().unwrap().into_vec::<f32>().unwrap();
    let (scaled, plain) = (values("blk.0.attn_q.weight"), values("blk.0.attn_k.weight"));
    assert!(scaled.iter().zip(&plain).all(|(scaled, plain)| *scaled == 2.0 * plain));
}

#[test]
fn missing_or_unexpected_parts_of_a_model_are_errors_with_a_remedy() {
    let dir = model();
    let args = ["model", "out.gguf", "--quantize", "bf16"];
    let path = Path::new("model").join("tokenizer.json");
    dir.convert(&args).code(1).stderr(format!(
        "error: {}: there is no such file; --no-tokenizer leaves the tokenizer out\n",
        path.display()
    ));
    let mut more = tensors();
    more.push(("visual.proj", TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap()));
    save_model(dir.path(), more);
    let args = [&args[..], &["--no-tokenizer"]].concat();
    dir.convert(&args).code(1).stderr(
        "error: tensor \"visual.proj\": it is no tensor of the architecture llama that is known \
         here; --drop skips it, --rename names it otherwise\n",
    );
    dir.convert(&[&args[..], &["--drop", "visual.*"]].concat()).success();
    let drop = ["--drop", "visual.*", "--drop", "lm_head.*", "--force"];
    dir.convert(&[&args[..], &drop].concat())
        .code(1)
        .stderr("error: the model lacks \"lm_head.weight\"\n");
}

#[test]
fn options_of_other_outputs_are_wrong_usage() {
    let dir = model();
    let fixture = crate::other_formats::fixture("gguf/plain.gguf");
    fs::copy(fixture, dir.at("plain.gguf")).unwrap();
    let how = "choose how weights are stored: --quantize with q8_0, q4_0, bf16, f16, f32";
    let holds = "--quantize decides the dtypes of a GGUF file";
    for (line, expected) in [
        ("model out.gguf", how),
        ("model out.gguf --dtype f16", holds),
        ("model out.gguf --overflow saturate", holds),
        ("model out.gguf --max-shard-size 1GB", "need a directory as OUT"),
        ("model out.gguf --quantize nvfp4", how),
        ("model out.gguf --quantize f16 --report", "--report is for other outputs"),
        ("model out.gguf --ranks 2", "need a directory as OUT"),
        ("model model out.gguf --quantize f16", "one model: name one IN"),
        ("- out.gguf --quantize f16", "which must be on the disk"),
        ("model out.safetensors --no-tokenizer", "--no-tokenizer needs a .gguf file"),
        ("model s3://bucket/out.gguf --quantize q8_0", "GGUF and NumPy's files are written"),
        ("model out --quantize q8_0", "--quantize q8_0 needs a .gguf file as OUT"),
        ("model out.gguf --quantize q5_k", "or for OUT.gguf q8_0, q4_0, bf16, f16, f32\n"),
        ("plain.gguf out.gguf --quantize q8_0", "already a GGUF file"),
    ] {
        dir.convert(line).fails(2, expected);
    }
    assert!(!dir.at("out.gguf").exists());
}

/// The sum is computed as F32, from a base of any dtype, and the stored numbers are made from it.
#[test]
fn adapters_are_merged_into_both_ends() {
    let dir = temp_dir();
    let as_bf16 = |tensor: TensorBuf| tensor.convert(Dtype::BF16, &Default::default()).unwrap();
    save_model(dir.path(), tensors().into_iter().map(|(name, it)| (name, as_bf16(it))).collect());
    let sums = |values: Vec<f32>| {
        let deltas = (0..48).flat_map(|row| (0..32).map(move |column| (row, column)));
        let delta = |(row, column)| (row + 1) as f32 * ((column + 1) as f32 * 0.37);
        values.iter().zip(deltas).map(|(value, at)| value + delta(at)).collect::<Vec<_>>()
    };
    let values = |tensor: TensorBuf| {
        tensor.convert(Dtype::F32, &Default::default()).unwrap().into_vec::<f32>().unwrap()
    };
    let module = "model.layers.0.mlp.up_proj";
    let adapter = one_module(dir.path(), module, [48, 32], 0.37);
    let args = ["model", "out.gguf", "--quantize", "f32", "--no-tokenizer", "--lora", &adapter];
    dir.convert(&args).quiet();
    let base = tensors().into_iter().find(|(name, _)| name.starts_with(module)).unwrap().1;
    let read = opened(dir.path(), "out.gguf");
    let read = values(read.tensor("blk.0.ffn_up.weight").unwrap().read().unwrap());
    assert_eq!(read, sums(values(as_bf16(base))));

    // From quantised weights: all of them get the dtype of --dequantize.
    let args = ["model", "q8.gguf", "--quantize", "q8_0", "--no-tokenizer"];
    dir.convert(&args).success();
    let adapter = one_module(dir.path(), "blk.0.ffn_up", [48, 32], 0.37);
    let args = ["q8.gguf", "out.safetensors", "--lora", &adapter];
    dir.convert(&args).fails(1, "is quantised as Q8_0; --dtype bf16 makes");
    assert!(!dir.at("out.safetensors").exists());
    let args = [&args[..], &["--dequantize", "bf16"]].concat();
    dir.convert(&args).quiet();
    let out = dir.open("out.safetensors");
    let dtype = |name: &str| out.tensor(name).unwrap().dtype();
    assert_eq!(dtype("output_norm.weight"), Dtype::F32);
    for name in ["blk.0.ffn_up.weight", "blk.0.attn_q.weight"] {
        assert_eq!(dtype(name), Dtype::BF16);
    }
    let base = opened(dir.path(), "q8.gguf");
    let base = values(base.tensor("blk.0.ffn_up.weight").unwrap().read().unwrap());
    let expected = TensorBuf::from_vec(vec![48, 32], sums(base)).unwrap();
    let found = out.tensor("blk.0.ffn_up.weight").unwrap().read().unwrap();
    assert_eq!(found.bytes(), as_bf16(expected).bytes());
}

#[test]
fn a_file_of_gguf_becomes_a_model_of_transformers_again() {
    let dir = model();
    dir.convert("model q8.gguf --quantize q8_0 --no-tokenizer").success();
    let unmade = "; not made, and needed by transformers: config.json and the tokenizer\n";
    dir.convert("q8.gguf back --names transformers --dtype bf16").quiet().stdout(ends_with(unmade));
    let back = dir.open("back");
    assert_eq!(back.metadata()["format"], "pt");
    assert_eq!(back.len(), tensors().len());
    for (name, tensor) in tensors() {
        let found = back.tensor(name).unwrap().read().unwrap();
        assert_eq!((found.dtype(), found.shape()), (Dtype::BF16, tensor.shape()), "{name}");
        let found = found.convert(Dtype::F32, &Default::default()).unwrap();
        let found = found.into_vec::<f32>().unwrap();
        let given = tensor.into_vec::<f32>().unwrap();
        assert!(found.iter().zip(&given).all(|(a, b)| (a - b).abs() < 0.006), "{name}");
    }
    // Bit for bit, if nothing is rounded.
    dir.convert("model f32.gguf --quantize f32 --no-tokenizer").success();
    dir.convert("f32.gguf f32 --names transformers").quiet();
    dir.run("diff model f32 --ignore-metadata").shows("12 tensors equal");

    // All other options are about these names.
    let adapter = one_module(dir.path(), "model.layers.0.mlp.up_proj", [48, 32], 0.37);
    let options = "--names transformers --quantize fp8 --dtype bf16 --drop lm_head.weight --lora";
    dir.convert(&format!("q8.gguf fp8 {options} {adapter}")).success();
    let fp8 = dir.open("fp8");
    let dtype = |name: &str| fp8.tensor(name).unwrap().dtype();
    assert_eq!(dtype("model.layers.0.self_attn.q_proj.weight"), Dtype::F8_E4M3);
    assert_eq!(dtype("model.embed_tokens.weight"), Dtype::BF16);
    assert!(fp8.get("lm_head.weight").is_none());
}

#[test]
fn names_of_transformers_need_a_known_model() {
    let dir = model();
    let convert = |line: &str| dir.convert(&format!("{line} --names transformers"));
    for input in ["model", "model/model.safetensors"] {
        convert(&format!("{input} out")).fails(2, "--names transformers needs a GGUF file");
    }
    convert("model out.gguf --quantize f16").fails(2, "needs a GGUF file");
    dir.convert("model out --names gguf").fails(2, "[possible values: transformers]");
    let fixture = crate::other_formats::fixture("gguf/quantised.gguf");
    fs::copy(fixture, dir.at("in.gguf")).unwrap();
    let unknown = "tensor \"of.IQ1_M\": it is no tensor of the architecture llama that is known here; \
                   --drop skips it";
    convert("in.gguf out --dtype f16").fails(1, unknown);
    convert("in.gguf out --dtype f16 --drop of.*").fails(1, "no tensor is left");
    let mut writer = Writer::new();
    writer.metadata("general.architecture", "phi3");
    let mut file = AtomicFile::create(dir.at("in.gguf"), &quick()).unwrap();
    writer.write(&file, |_| ()).unwrap();
    file.commit().unwrap();
    convert("in.gguf out").fails(1, "in.gguf: general.architecture should be one of llama, qwen2,");
    assert!(!dir.at("out").exists());
}
