//! Adapters in the formats of other trainers: a merge gives the same bits.

use safetensors_core::load::{ExpertLayout, ExpertOptions};
use safetensors_core::lora::AdapterFormat::{Diffusers, Kohya, Mlx, Peft};
use safetensors_core::lora::{Adapter, AdapterFormat, ConvertedAdapter};
use safetensors_testing::lora::Merge;

use super::{base, write};
use crate::support::*;

const ALL: [AdapterFormat; 4] = [Peft, Diffusers, Kohya, Mlx];

const NO_BASE: Option<&Checkpoint> = None;

/// Writes an adapter to a directory.
fn save(converted: &ConvertedAdapter, format: AdapterFormat) -> TempDir {
    let directory = tempdir().unwrap();
    let path = directory.path().join(format.file_name());
    converted.rewrite().unwrap().save(path, &SaveOptions::new().durable(false)).unwrap();
    if let Some(settings) = converted.settings() {
        fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    }
    directory
}

/// Opens the file of an adapter in a directory.
fn file(directory: &Path) -> Checkpoint {
    let mut entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_file = |path: &PathBuf| path.extension().is_some_and(|it| it == "safetensors");
    Checkpoint::open(entries.find(is_file).unwrap()).unwrap()
}

fn open(path: &Path) -> Checkpoint {
    if path.is_dir() { file(path) } else { Checkpoint::open(path).unwrap() }
}

/// Returns the bytes of all tensors of a checkpoint with an adapter merged into it.
fn merged(base: Checkpoint, adapter: Checkpoint) -> BTreeMap<String, Vec<u8>> {
    let merged = base.merged([Adapter::new(adapter).unwrap()]).unwrap();
    let read = |tensor: safetensors_core::load::LazyTensor<'_, _>| {
        (tensor.name().to_owned(), tensor.read().unwrap().bytes().to_vec())
    };
    merged.tensors().map(read).collect()
}

/// The tensors of a file, and its settings.
fn contents(directory: &Path) -> (BTreeMap<String, String>, Option<String>) {
    let checkpoint = file(directory);
    let tensors = checkpoint.tensors().map(|it| {
        let bytes = it.read().unwrap().bytes().to_vec();
        (it.name().to_owned(), format!("{} {:?} {bytes:?}", it.dtype(), it.shape()))
    });
    (tensors.collect(), fs::read_to_string(directory.join("adapter_config.json")).ok())
}

/// Each fixture in each format that can store it: the same sums, and again in each format from
/// there. Then the first format again: the same tensors and settings.
#[test]
fn every_format_that_can_store_a_kind_gives_the_same_sums() {
    let mut stored = Vec::new();
    for fixture in Merge::all() {
        let [path] = &fixture.paths()[..] else { continue };
        let expected = merged(fixture.base(), open(path));
        for format in ALL {
            let Ok(converted) = open(path).adapter_as(format, Some(&fixture.base())) else {
                continue;
            };
            let first = save(&converted, format);
            let found = merged(fixture.base(), file(first.path()));
            assert!(found == expected, "{} {format}", fixture.name);
            stored.push(format!("{} {format}", fixture.name));
            for other in ALL {
                let adapter = file(first.path());
                let Ok(converted) = adapter.adapter_as(other, Some(&fixture.base())) else {
                    continue;
                };
                let second = save(&converted, other);
                let found = merged(fixture.base(), file(second.path()));
                assert!(found == expected, "{} {format} {other}", fixture.name);
                let back = file(second.path()).adapter_as(format, Some(&fixture.base())).unwrap();
                let third = save(&back, format);
                assert_eq!(contents(third.path()), contents(first.path()), "{}", fixture.name);
            }
        }
    }
    for expected in [
        "bf16 PEFT",
        "dora PEFT",
        "exact-kohya PEFT",
        "exact-kohya kohya",
        "exact-rank-1 mlx-lm",
        "linear PEFT",
        "linear kohya",
        "loha kohya",
        "loha-tucker kohya",
        "lycoris kohya",
        "lycoris-dora kohya",
        "new-head PEFT",
        "rslora kohya",
    ] {
        assert!(stored.iter().any(|it| it == expected), "{expected} of {stored:?}");
    }
}

/// A module of the UNet, with 3 inputs, 2 outputs and rank 1, and another of rank 2.
fn unet(name: impl Fn(&str, char) -> String) -> Vec<(String, Vec<usize>)> {
    let modules = [("down_blocks.0.attn1.to_q", 1), ("mid_block.to_out.0", 2)];
    let of_module = modules.iter().flat_map(|(module, rank)| {
        [(name(module, 'A'), vec![*rank, 3]), (name(module, 'B'), vec![2, *rank])]
    });
    of_module.collect()
}

/// Makes a file of an adapter.
fn of_file(tensors: &[(String, Vec<usize>)]) -> Checkpoint {
    let (_directory, path) = place("lora.safetensors");
    let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (&**name, &**shape)).collect();
    write(&path, &tensors);
    Checkpoint::open(&path).unwrap()
}

#[test]
fn names_of_pipelines() {
    let weights: [(&str, &[usize]); 2] =
        [("down_blocks.0.attn1.to_q.weight", &[2, 3]), ("mid_block.to_out.0.weight", &[2, 3])];
    let of_kohya = unet(|name, end| {
        let end = if end == 'A' { "lora_down" } else { "lora_up" };
        format!("lora_unet_{}.{end}.weight", name.replace('.', "_"))
    });
    let of_diffusers = unet(|name, end| format!("unet.{name}.lora_{end}.weight"));
    let expected = merged(base(&weights), of_file(&of_kohya));
    assert_eq!(merged(base(&weights), of_file(&of_diffusers)), expected);
    // kohya's names need the base.
    for format in [Diffusers, Peft, Mlx] {
        let error = of_file(&of_kohya).adapter_as(format, NO_BASE).unwrap_err().to_string();
        assert!(error.contains("without the base, which shows where `_` is `.`"), "{error}");
    }
    for (adapter, format) in [(&of_kohya, Diffusers), (&of_diffusers, Kohya)] {
        let directory =
            save(&of_file(adapter).adapter_as(format, Some(&base(&weights))).unwrap(), format);
        let saved = file(directory.path());
        let names: Vec<_> = saved.tensors().map(|tensor| tensor.name().to_owned()).collect();
        let expected_names = if format == Kohya { &of_kohya } else { &of_diffusers };
        assert!(expected_names.iter().all(|(name, _)| names.contains(name)), "{names:?}");
        let alphas = names.iter().filter(|name| name.ends_with(".alpha")).count();
        assert_eq!(alphas, if format == Kohya { 2 } else { 0 });
        assert_eq!(saved.metadata().contains_key("lora_adapter_metadata"), format == Diffusers);
        assert_eq!(merged(base(&weights), saved), expected);
    }
    // PEFT has an adapter for one model, and no name for it.
    let peft = save(&of_file(&of_diffusers).adapter_as(Peft, NO_BASE).unwrap(), Peft);
    assert!(file(peft.path()).get("base_model.model.mid_block.to_out.0.lora_A.weight").is_some());
    let again = file(peft.path()).adapter_as(Diffusers, NO_BASE).unwrap();
    assert_eq!(merged(base(&weights), file(save(&again, Diffusers).path())), expected);
}

#[test]
fn text_encoders_have_the_prefixes_of_kohya() {
    let name = |model: &str, end| format!("{model}.text_model.layers.0.q.lora_{end}.weight");
    let pair = |model: &str| [(name(model, 'A'), vec![1, 3]), (name(model, 'B'), vec![2, 1])];
    for (models, prefixes) in [
        (&["text_encoder"][..], &["lora_te_"][..]),
        (&["text_encoder", "text_encoder_2"], &["lora_te1_", "lora_te2_"]),
    ] {
        let tensors: Vec<_> = models.iter().flat_map(|model| pair(model)).collect();
        let converted = of_file(&tensors).adapter_as(Kohya, NO_BASE).unwrap();
        for prefix in prefixes {
            let name = format!("{prefix}text_model_layers_0_q.lora_up.weight");
            let rewrite = converted.rewrite().unwrap();
            assert!(rewrite.tensors().any(|(found, _)| found == name), "{name}");
        }
        let error = of_file(&tensors).adapter_as(Mlx, NO_BASE).err().map(|it| it.to_string());
        let expected = "cannot store several models: text_encoder, text_encoder_2";
        assert_eq!(error.is_some_and(|it| it.contains(expected)), models.len() == 2);
    }
}

/// transformers 5 has no `text_model` in the names of a text encoder; kohya's files have it.
#[test]
fn names_of_text_encoders_of_any_version() {
    let module = "encoder.layers.0.q";
    let pair = |start: &str| {
        let name = |end| format!("text_encoder.{start}{module}.lora_{end}.weight");
        of_file(&[(name('A'), vec![1, 3]), (name('B'), vec![2, 1])])
    };
    for (start, base_start) in [("", "text_model."), ("text_model.", ""), ("", "")] {
        let name = format!("{base_start}{module}.weight");
        let base = || base(&[(&name, &[2, 3])]);
        let expected = merged(base(), pair(start));
        assert_ne!(expected[&name], base().tensor(&name).unwrap().read().unwrap().bytes());
        let kohya = save(&pair(start).adapter_as(Kohya, NO_BASE).unwrap(), Kohya);
        let up = "lora_te_text_model_encoder_layers_0_q.lora_up.weight";
        assert!(file(kohya.path()).get(up).is_some());
        assert_eq!(merged(base(), file(kohya.path())), expected);
        let back = file(kohya.path()).adapter_as(Diffusers, Some(&base())).unwrap();
        assert_eq!(merged(base(), file(save(&back, Diffusers).path())), expected);
    }
}

/// PEFT saves an embedding that LoRA changes, too.
#[test]
fn a_complete_tensor_next_to_lora() {
    let prefix = "base_model.model.lm_head";
    let names = ["base_layer.weight", "lora_A.weight", "lora_B.weight"];
    let names = names.map(|end| format!("{prefix}.{end}"));
    let tensors: [(&str, &[usize]); 3] =
        [(&names[0], &[2, 3]), (&names[1], &[1, 3]), (&names[2], &[2, 1])];
    let directory = tempdir().unwrap();
    write(&directory.path().join("adapter_model.safetensors"), &tensors);
    let settings = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    let base = || base(&[("lm_head.weight", &[2, 3])]);
    let peft = save(&file(directory.path()).adapter_as(Peft, NO_BASE).unwrap(), Peft);
    assert_eq!(contents(peft.path()).0, contents(directory.path()).0);
    assert!(contents(peft.path()).1.unwrap().contains("\"modules_to_save\": []"));
    assert_eq!(merged(base(), file(peft.path())), merged(base(), file(directory.path())));
    let error = file(directory.path()).adapter_as(Mlx, NO_BASE).unwrap_err().to_string();
    assert!(error.contains("cannot store a complete tensor, or a bias next to LoRA"), "{error}");
}

/// A mixture in a directory, with experts split or stacked.
fn mixture(model: &str, weights: impl FnOnce(&Path)) -> (TempDir, Checkpoint) {
    let directory = tempdir().unwrap();
    weights(&directory.path().join("model.safetensors"));
    let config = format!("{{\"model_type\": \"{model}\"}}");
    fs::write(directory.path().join("config.json"), config).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    (directory, checkpoint)
}

/// Copies the checkpoint of a fixture.
fn copy(fixture: &Merge) -> impl FnOnce(&Path) {
    |path| assert!(fs::copy(fixture.model(), path).is_ok())
}

/// The adapter of each expert changes the split model as the stacked one changes the stacks.
fn check_experts(path: &Path, directory: &Path) {
    let base = || Checkpoint::open(directory).unwrap();
    let (layout, options) = (ExpertLayout::Split, ExpertOptions::new());
    let directory = save(&open(path).adapter_as(Peft, Some(&base())).unwrap(), Peft);
    let found = file(directory.path());
    assert!(found.get("base_model.model.experts.1.up_proj.lora_B.weight").is_some());
    let stacked = base().merged([Adapter::open(path).unwrap()]).unwrap();
    let expected = stacked.experts(layout, &options).unwrap();
    let split = base().experts(layout, &options).unwrap();
    let split = split.merged([Adapter::new(found).unwrap()]).unwrap();
    assert_eq!(split.len(), expected.len());
    for tensor in split.tensors() {
        let expected = expected.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!(tensor.read().unwrap().bytes(), expected.bytes(), "{}", tensor.name());
    }
    let directory = save(&open(path).adapter_as(Kohya, Some(&base())).unwrap(), Kohya);
    assert!(file(directory.path()).get("lycoris_experts_1_up_proj.alpha").is_some());
}

#[test]
fn stacked_experts_become_adapters_of_each() {
    for (name, model) in
        [("experts", "qwen3_moe"), ("experts", "olmoe"), ("experts-in-out", "gpt_oss")]
    {
        let fixture = Merge::named(name);
        let (directory, _) = mixture(model, copy(&fixture));
        check_experts(&fixture.paths()[0], directory.path());
    }
}

/// PEFT before 0.19 multiplied `lora_A` with the outputs.
#[test]
fn exchanged_matrices_of_experts_are_recognised_by_their_shapes() {
    let weights: [(&str, &[usize]); 2] =
        [("experts.gate_up_proj", &[2, 8, 6]), ("experts.down_proj", &[2, 6, 4])];
    let (mixture, _) = mixture("qwen3_moe", |path| write(path, &weights));
    let directory = tempdir().unwrap();
    let name = |name| format!("base_model.model.experts.{name}.weight");
    let pairs: [(&str, &[usize]); 4] = [
        (&name("base_layer.lora_A"), &[4, 8]),
        (&name("base_layer.lora_B"), &[6, 4]),
        (&name("lora_A"), &[4, 6]),
        (&name("lora_B"), &[4, 4]),
    ];
    write(&directory.path().join("adapter_model.safetensors"), &pairs);
    let settings = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "peft_version": "0.18.1",
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    check_experts(directory.path(), mixture.path());
}

#[test]
fn experts_that_do_not_show_their_layout_are_errors() {
    let fixture = Merge::named("experts");
    let path = &fixture.paths()[0];
    let convert = |format, base: Option<&Checkpoint>| {
        open(path).adapter_as(format, base).unwrap_err().to_string()
    };
    assert!(convert(Peft, None).contains("without the config.json of the base"));
    assert!(convert(Peft, Some(&fixture.base())).contains("config.json"));
    assert!(convert(Mlx, None).contains("the format of mlx-lm cannot store stacked experts"));
    // One stack alone.
    let fixture = Merge::named("experts-0.18");
    let (_directory, base) = mixture("qwen3_moe", copy(&fixture));
    let error = open(&fixture.paths()[0]).adapter_as(Peft, Some(&base)).unwrap_err().to_string();
    assert!(error.contains("matrices of both stacks"), "{error}");
}

#[test]
fn a_part_that_a_format_cannot_store_is_named() {
    for (fixture, format, expected) in [
        ("loha", Peft, "PEFT cannot store LoHa"),
        ("lokr", Mlx, "mlx-lm cannot store LoKr"),
        ("lycoris", Diffusers, "diffusers cannot store"),
        ("lycoris-dora", Peft, "PEFT cannot store DoRA of this kind"),
        ("dora", Kohya, "kohya cannot store DoRA of this kind"),
        ("dora-embedding", Mlx, "mlx-lm cannot store LoRA of embeddings: \"embed"),
        ("mlx-dora", Diffusers, "diffusers cannot store LoRA of embeddings"),
        ("lora-bias", Mlx, "mlx-lm cannot store LoRA"),
        ("lora-bias", Kohya, "kohya cannot store LoRA with the tensor"),
        ("embedding", Kohya, "kohya cannot store LoRA of embeddings: \"embed\""),
        ("fan-in-fan-out", Kohya, "stored transposed (fan_in_fan_out)"),
        ("fan-in-fan-out", Mlx, "stored transposed (fan_in_fan_out)"),
        ("convolution", Mlx, "mlx-lm cannot store LoRA of convolutions"),
        ("rslora", Mlx, "mlx-lm cannot store modules of different ranks or factors"),
        ("new-head", Kohya, "kohya cannot store a complete tensor"),
        ("mlx", Peft, "PEFT cannot store LoRA of embeddings"),
        ("linear", Diffusers, "without a known model of a pipeline"),
    ] {
        let fixture = Merge::named(fixture);
        let error = open(&fixture.paths()[0]).adapter_as(format, Some(&fixture.base()));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{} {format}: {error}", fixture.name);
    }
}
