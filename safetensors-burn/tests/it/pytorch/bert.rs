//! The recipes of the documentation for BERT in the layouts that are in use, and for prefixes.

use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use safetensors_burn::save;
use safetensors_core::SaveOptions;

use super::*;

#[derive(Module, Debug)]
struct Bert {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Embeddings {
    word_embeddings: Embedding,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Layer {
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

const WIDTH: usize = 4;
const LAYERS: usize = 2;

fn bert() -> Bert {
    let device = Device::default();
    let norm = || LayerNormConfig::new(WIDTH).init(&device);
    let layer = |_| Layer {
        attention: MultiHeadAttentionConfig::new(WIDTH, 2).init(&device),
        attention_norm: norm(),
        intermediate: LinearConfig::new(WIDTH, 6).init(&device),
        output: LinearConfig::new(6, WIDTH).init(&device),
        output_norm: norm(),
    };
    let word_embeddings = EmbeddingConfig::new(5, WIDTH).init(&device);
    Bert {
        embeddings: Embeddings { word_embeddings, norm: norm() },
        layers: (0..LAYERS).map(layer).collect(),
    }
}

const ON_LOAD: [(&str, &str); 8] = [
    (r"\.attention\.self\.", ".attention."),
    (r"\.attention\.output\.dense\.", ".attention.output."),
    (r"\.attention\.output\.LayerNorm\.", ".attention_norm."),
    (r"\.intermediate\.dense\.", ".intermediate."),
    (r"\.output\.dense\.", ".output."),
    (r"\.output\.LayerNorm\.", ".output_norm."),
    (r"\.LayerNorm\.", ".norm."),
    (r"^encoder\.layer\.", "layers."),
];

const ON_SAVE: [(&str, &str); 7] = [
    (r"^layers\.", "encoder.layer."),
    (r"\.norm\.", ".LayerNorm."),
    (r"\.output_norm\.", ".output.LayerNorm."),
    (r"\.output\.(weight|bias)", ".output.dense.$1"),
    (r"\.intermediate\.", ".intermediate.dense."),
    (r"\.attention_norm\.", ".attention.output.LayerNorm."),
    (r"\.attention\.(query|key|value)\.", ".attention.self.$1."),
];

fn store(path: &Path, rules: &[(&str, &str)]) -> CheckpointStore {
    let store = CheckpointStore::from_file(path);
    let store = store.pytorch(true).fused_attention(false).overwrite(true);
    rules.iter().fold(store, |store, (from, to)| store.with_key_remapping(from, *to))
}

/// Returns the tensors of a BERT as Hugging Face's transformers name them. Each number occurs once.
fn published() -> BTreeMap<String, TensorData> {
    let mut names = vec![("embeddings.word_embeddings.weight".to_owned(), vec![5, WIDTH])];
    let mut norm = |name: String| {
        names.extend(["weight", "bias"].map(|kind| (format!("{name}.{kind}"), vec![WIDTH])));
    };
    norm("embeddings.LayerNorm".into());
    for layer in 0..LAYERS {
        norm(format!("encoder.layer.{layer}.attention.output.LayerNorm"));
        norm(format!("encoder.layer.{layer}.output.LayerNorm"));
    }
    for layer in 0..LAYERS {
        for (name, rows, columns) in [
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", 6, WIDTH),
            ("output.dense", WIDTH, 6),
        ] {
            let name = format!("encoder.layer.{layer}.{name}");
            names.push((format!("{name}.weight"), vec![rows, columns]));
            names.push((format!("{name}.bias"), vec![rows]));
        }
    }
    let mut next = 0.0_f32;
    let data = |(name, shape): (String, Vec<usize>)| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| next + i as f32).collect();
        next += count as f32;
        (name, TensorData::new(values, shape))
    };
    names.into_iter().map(data).collect()
}

/// Returns the saved form of a BERT by the rules for saving.
fn saved(bert: &Bert, dir: &TempDir) -> BTreeMap<String, TensorData> {
    let path = dir.path().join("saved.safetensors");
    bert.save_into(&mut store(&path, &ON_SAVE)).unwrap();
    load(&path).unwrap().into_iter().collect()
}

#[test]
fn the_names_of_transformers_old_and_new_with_prefixes() {
    let (dir, tensors) = (dir(), published());
    for (prefix, pattern, is_old) in [
        ("", "^", false),
        ("bert.", r"^bert\.", true),
        ("0.auto_model.", r"^0\.auto_model\.", false),
    ] {
        // Old files have other names of norms.
        let [gamma, beta] = if is_old { ["gamma", "beta"] } else { ["weight", "bias"] };
        let path = dir.path().join("published.safetensors");
        let renamed = tensors.iter().map(|(name, data)| {
            let name = name.replace("LayerNorm.weight", &format!("LayerNorm.{gamma}"));
            let name = name.replace("LayerNorm.bias", &format!("LayerNorm.{beta}"));
            (format!("{prefix}{name}"), data)
        });
        save(&path, renamed, &SaveOptions::new()).unwrap();
        let rules: Vec<_> = [(pattern, "")].into_iter().chain(ON_LOAD).collect();
        let mut model = bert();
        let result = model.load_from(&mut store(&path, &rules)).unwrap();
        assert!(result.unused.is_empty(), "{result}");
        let key = &model.layers[1].attention.key;
        let expected = &tensors["encoder.layer.1.attention.self.key.weight"];
        assert_eq!(key.weight.val().transpose().into_data(), *expected);
        assert_eq!(saved(&model, &dir), tensors, "{prefix}");
        // And back: a rule for the start of each name.
        let rules: Vec<_> = ON_SAVE.into_iter().chain([("^", prefix)]).collect();
        let back = dir.path().join("back.safetensors");
        model.save_into(&mut store(&back, &rules)).unwrap();
        let expected = tensors.iter().map(|(name, data)| (format!("{prefix}{name}"), data.clone()));
        assert!(load(&back).unwrap().into_iter().eq(expected), "{prefix}");
    }
}

#[test]
fn a_field_of_another_name_than_in_the_file() {
    // `self` is no name for a field in Rust.
    #[derive(Module, Debug)]
    struct Block {
        self_attention: Linear,
    }
    let (_dir, path) = place("block.safetensors");
    let device = Device::default();
    let block = || Block { self_attention: LinearConfig::new(2, 3).init(&device) };
    let (first, mut second) = (block(), block());
    first.save_into(&mut store(&path, &[(r"^self_attention\.", "self.")])).unwrap();
    assert_eq!(load(&path).unwrap()["self.weight"].shape()[..], [3, 2]);
    second.load_from(&mut store(&path, &[(r"^self\.", "self_attention.")])).unwrap();
    let found = second.self_attention.weight.to_data();
    assert_eq!(found, first.self_attention.weight.to_data());
}
