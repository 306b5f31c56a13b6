//! The weights: their names and shapes, how they are divided among ranks, and a checkpoint of them.

use std::path::Path;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use safetensors_core::ShardOptions;
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::ranks::{Division, RankRules};

pub(crate) const LAYERS: usize = 2;
/// The length of the vector of a token. It does not divide evenly among 4 ranks, so the stripes of
/// norms differ in length.
pub(crate) const HIDDEN: usize = 270;
/// The heads of queries.
pub(crate) const HEADS: usize = 8;
/// The heads of keys and values. Each is shared by 4 heads of queries.
pub(crate) const KV_HEADS: usize = 2;
/// The length of a head's vector. With these lengths a rank's parts are more than 512 bytes apart,
/// for up to 8 ranks, so no gap between them is read along with them.
pub(crate) const HEAD: usize = 130;
pub(crate) const INTERMEDIATE: usize = 1040;
pub(crate) const VOCABULARY: usize = 512;

/// How the weights are divided among this many ranks: as Llama's, but several ranks share a head of
/// keys and values if there are more ranks than such heads.
pub(crate) fn rules(world_size: usize) -> Result<RankRules> {
    ensure!(
        HEADS.is_multiple_of(world_size),
        "the {HEADS} heads cannot be divided among {world_size} ranks"
    );
    let heads = if world_size > KV_HEADS {
        Division::Shared { dim: 0, parts: KV_HEADS }
    } else {
        Division::Split { dim: 0 }
    };
    Ok(RankRules::new().rule("*.{k,v}_proj.weight", heads)?.then(RankRules::llama()))
}

/// Writes a checkpoint of several files. Equal seeds give equal bytes. Norms do not depend on it.
pub(crate) fn write(directory: &Path, seed: u64) -> Result<SavedShards> {
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], value: &mut dyn FnMut(usize) -> f32| {
        let values: Vec<_> = (0..shape.iter().product()).map(value).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
        tensors.push((name, tensor));
        anyhow::Ok(())
    };
    let mut random = Random(seed);
    let mut matrix = |name: String, rows: usize, columns: usize| {
        // The sum of `columns` products remains about 1.
        let scale = (3.0 / columns as f32).sqrt();
        add(name, &[rows, columns], &mut |_| scale * random.next())
    };
    matrix("model.embed_tokens.weight".into(), VOCABULARY, HIDDEN)?;
    matrix("lm_head.weight".into(), VOCABULARY, HIDDEN)?;
    for layer in 0..LAYERS {
        for (name, rows, columns) in [
            ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
            ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
            ("mlp.up_proj", INTERMEDIATE, HIDDEN),
            ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ] {
            matrix(format!("model.layers.{layer}.{name}.weight"), rows, columns)?;
        }
    }
    let mut norm = |name: String| {
        add(format!("{name}.weight"), &[HIDDEN], &mut |i| 1.0 + 0.1 * (i as f32).sin())
    };
    norm("model.norm".into())?;
    for layer in 0..LAYERS {
        norm(format!("model.layers.{layer}.input_layernorm"))?;
        norm(format!("model.layers.{layer}.post_attention_layernorm"))?;
    }
    let options = ShardOptions::new().max_shard_size("3MB".parse()?);
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    Ok(safetensors_candle::save_sharded(directory, tensors, &options)?)
}

/// Numbers from -1 to 1 that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        // A float has 24 bits.
        (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
