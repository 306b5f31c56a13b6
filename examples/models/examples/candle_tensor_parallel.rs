//! A small Llama-like model on two ranks, each with its own part of the weights.
//!
//! `cargo run --release -p model-examples --example candle_tensor_parallel`
//!
//! The ranks are two threads of this process. Each reads only its part of the checkpoint, which the
//! example makes itself. Queries, keys and values are one fused tensor, and both ranks share the
//! only head of keys and values. The example ends with an error if the logits differ from a single
//! rank's by more than a rounding error: the ranks add partial sums in another order.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Embedding, Linear, RmsNorm, ops};
use model_examples::llama::{TOKENS, add};
use safetensors_bridge::candle::{TensorParallelBackend, TensorParallelVarBuilder, save_sharded};
use safetensors_bridge::slice::{RankPart, TensorPart};
use safetensors_bridge::{Checkpoint, ShardOptions};

const LAYERS: usize = 2;
const HIDDEN: usize = 64;
const HEADS: usize = 4;
/// The heads of keys and values, fewer than ranks.
const KV_HEADS: usize = 1;
const HEAD: usize = 16;
const INTERMEDIATE: usize = 160;
const VOCABULARY: usize = 96;

/// The most by which logits of about 1 may differ.
const TOLERANCE: f32 = 1e-5;

type VarBuilder<'a> = TensorParallelVarBuilder<'a, TensorPart>;

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    write_checkpoint(dir.path()).context("writing the checkpoint")?;
    let checkpoint = Checkpoint::open(dir.path())?;
    let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    println!("{} tensors of {bytes} bytes", checkpoint.len());

    // One backend serves all ranks of the process: its clones share the open files.
    let backend = TensorParallelBackend::new(checkpoint).hints::<TensorPart>();
    let builder = || backend.var_builder(DType::F32, &Device::Cpu);
    let alone = run(&builder(), &ranks(1).remove(0))?;

    let of_ranks = thread::scope(|scope| {
        let threads: Vec<_> = ranks(2)
            .into_iter()
            .map(|rank| {
                let builder = builder();
                scope.spawn(move || run(&builder, &rank))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(logits) => logits,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Result<Vec<_>>>()
    })?;

    let largest = alone.abs()?.max_all()?.to_scalar::<f32>()?;
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    for (rank, logits) in of_ranks.iter().enumerate() {
        ensure!(logits.dims() == alone.dims(), "rank {rank} has logits of {:?}", logits.dims());
        let difference = (logits - &alone)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!("rank {rank} of 2: logits up to {largest:.3} differ by at most {difference:e}");
        // Not `>`: NaN is an error, too.
        ensure!(difference <= TOLERANCE, "expected at most {TOLERANCE:e}");
        // All ranks add the same sums in the same order.
        let same = logits.to_vec2::<f32>()? == of_ranks[0].to_vec2::<f32>()?;
        ensure!(same, "rank {rank} has other logits than rank 0");
    }
    Ok(())
}

/// Loads the parts of a rank and computes the logits of all tokens.
fn run(builder: &VarBuilder<'_>, rank: &Rank) -> Result<Tensor> {
    let model = Model::load(builder, rank)?;
    println!("rank {} of {} holds {} bytes", rank.rank, rank.world_size(), model.byte_len());
    model.forward(&Tensor::new(&TOKENS, &Device::Cpu)?, rank)
}

/// One rank, and its links to the others.
struct Rank {
    rank: usize,
    /// One link to each rank; none to itself.
    links: Vec<Option<(Sender<Tensor>, Receiver<Tensor>)>>,
}

/// Ranks with a link between each two of them.
fn ranks(world_size: usize) -> Vec<Rank> {
    let mut ranks: Vec<_> = (0..world_size).map(|rank| Rank { rank, links: Vec::new() }).collect();
    for a in 0..world_size {
        for b in 0..world_size {
            if a == b {
                ranks[a].links.push(None);
            } else if a < b {
                let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
                ranks[a].links.push(Some((to_b, from_b)));
                ranks[b].links.push(Some((to_a, from_a)));
            }
        }
    }
    ranks
}

impl Rank {
    fn world_size(&self) -> usize {
        self.links.len()
    }

    /// Returns the rank's part of a dimension.
    fn part(&self, dim: usize) -> TensorPart {
        RankPart::new(dim, self.rank, self.world_size()).into()
    }

    /// Returns the tensors of all ranks, in their order. A rank that has failed drops its links,
    /// which is an error here and no endless wait.
    fn gather(&self, mine: &Tensor) -> Result<Vec<Tensor>> {
        for (to, _) in self.links.iter().flatten() {
            to.send(mine.clone()).context("another rank has failed")?;
        }
        let tensors = self.links.iter().map(|link| match link {
            None => Ok(mine.clone()),
            Some((_, from)) => from.recv().context("another rank has failed"),
        });
        tensors.collect()
    }

    /// Returns the sum over all ranks.
    fn sum(&self, mine: &Tensor) -> Result<Tensor> {
        let tensors = self.gather(mine)?;
        let (first, rest) = tensors.split_first().context("there is at least one rank")?;
        Ok(rest.iter().try_fold(first.clone(), |sum, tensor| sum + tensor)?)
    }
}

/// The part of the model that one rank holds.
struct Model {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    before_attention: RmsNorm,
    queries: Linear,
    keys: Linear,
    values: Linear,
    output: Linear,
    before_mlp: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

fn norm(builder: &VarBuilder<'_>, name: &str) -> Result<RmsNorm> {
    Ok(RmsNorm::new(builder.pp(name).get(HIDDEN, "weight")?, 1e-5))
}

/// Makes a linear layer with a part of a weight. `shape` is the whole weight's, or a span's.
fn linear(
    builder: &VarBuilder<'_>,
    name: &str,
    shape: (usize, usize),
    part: TensorPart,
) -> Result<Linear> {
    Ok(Linear::new(builder.pp(name).get_with_hints(shape, "weight", part)?, None))
}

impl Model {
    fn load(builder: &VarBuilder<'_>, rank: &Rank) -> Result<Self> {
        let model = builder.pp("model");
        let layers = (0..LAYERS).map(|i| Layer::load(&model.pp("layers").pp(i), rank));
        Ok(Self {
            embedding: Embedding::new(
                model.get((VOCABULARY, HIDDEN), "embed_tokens.weight")?,
                HIDDEN,
            ),
            layers: layers.collect::<Result<_>>()?,
            norm: norm(&model, "norm")?,
            head: linear(builder, "lm_head", (VOCABULARY, HIDDEN), rank.part(0))?,
        })
    }

    fn forward(&self, tokens: &Tensor, rank: &Rank) -> Result<Tensor> {
        let mut hidden = self.embedding.forward(tokens)?;
        for layer in &self.layers {
            hidden = (&hidden + layer.attention(&hidden, rank)?)?;
            hidden = (&hidden + layer.mlp(&hidden, rank)?)?;
        }
        // Each rank has the logits of its part of the vocabulary.
        let logits = self.head.forward(&self.norm.forward(&hidden)?)?;
        Ok(Tensor::cat(&rank.gather(&logits)?, D::Minus1)?)
    }

    fn byte_len(&self) -> usize {
        let linears = self.layers.iter().flat_map(|layer| {
            let Layer { queries, keys, values, output, gate, up, down, .. } = layer;
            [queries, keys, values, output, gate, up, down]
        });
        let weights = linears.chain([&self.head]).map(Linear::weight);
        let elements: usize =
            weights.chain([self.embedding.embeddings()]).map(Tensor::elem_count).sum();
        (elements + (2 * LAYERS + 1) * HIDDEN) * size_of::<f32>()
    }
}

impl Layer {
    fn load(builder: &VarBuilder<'_>, rank: &Rank) -> Result<Self> {
        let (attention, mlp) = (builder.pp("self_attn"), builder.pp("mlp"));
        // The rows of the fused weight: all heads of queries, then of keys, then of values.
        let heads = HEADS / rank.world_size();
        let kv_heads = KV_HEADS.div_ceil(rank.world_size());
        let first_kv_head = rank.rank * KV_HEADS / rank.world_size();
        let fused = |first_head: usize, heads: usize| {
            let span = TensorPart::span(0, first_head * HEAD, heads * HEAD);
            linear(&attention, "qkv_proj", (heads * HEAD, HIDDEN), span)
        };
        Ok(Self {
            before_attention: norm(builder, "input_layernorm")?,
            queries: fused(rank.rank * heads, heads)?,
            keys: fused(HEADS + first_kv_head, kv_heads)?,
            values: fused(HEADS + KV_HEADS + first_kv_head, kv_heads)?,
            output: linear(&attention, "o_proj", (HIDDEN, HEADS * HEAD), rank.part(1))?,
            before_mlp: norm(builder, "post_attention_layernorm")?,
            gate: linear(&mlp, "gate_proj", (INTERMEDIATE, HIDDEN), rank.part(0))?,
            up: linear(&mlp, "up_proj", (INTERMEDIATE, HIDDEN), rank.part(0))?,
            down: linear(&mlp, "down_proj", (HIDDEN, INTERMEDIATE), rank.part(1))?,
        })
    }

    /// Attention over the heads of this rank. The output layer is cut along its inputs, so the
    /// result is the sum over all ranks.
    fn attention(&self, hidden: &Tensor, rank: &Rank) -> Result<Tensor> {
        let hidden = self.before_attention.forward(hidden)?;
        let tokens = hidden.dim(0)?;
        // Of shape [heads, tokens, HEAD].
        let by_head = |linear: &Linear| -> Result<Tensor> {
            let projected = linear.forward(&hidden)?;
            Ok(projected.reshape((tokens, (), HEAD))?.transpose(0, 1)?.contiguous()?)
        };
        let queries = by_head(&self.queries)?;
        // All heads of queries of a rank share its head of keys and values.
        let shared = |tensor: Tensor| tensor.broadcast_as((queries.dim(0)?, tokens, HEAD));
        let keys = shared(by_head(&self.keys)?)?.contiguous()?;
        let values = shared(by_head(&self.values)?)?.contiguous()?;
        let scores = (queries.matmul(&keys.t()?)? / (HEAD as f64).sqrt())?;
        let future: Vec<f32> = (0..tokens * tokens)
            .map(|i| if i % tokens > i / tokens { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let future = Tensor::from_vec(future, (tokens, tokens), hidden.device())?;
        let weights = ops::softmax_last_dim(&scores.broadcast_add(&future)?)?;
        let attended = weights.matmul(&values)?.transpose(0, 1)?.reshape((tokens, ()))?;
        rank.sum(&self.output.forward(&attended)?)
    }

    fn mlp(&self, hidden: &Tensor, rank: &Rank) -> Result<Tensor> {
        let hidden = self.before_mlp.forward(hidden)?;
        let gated = (self.gate.forward(&hidden)?.silu()? * self.up.forward(&hidden)?)?;
        rank.sum(&self.down.forward(&gated)?)
    }
}

/// Writes the weights as a checkpoint of several files.
fn write_checkpoint(dir: &Path) -> Result<()> {
    let mut tensors = Vec::new();
    for i in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", &[HIDDEN][..]),
            ("self_attn.qkv_proj", &[(HEADS + 2 * KV_HEADS) * HEAD, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HEADS * HEAD]),
            ("post_attention_layernorm", &[HIDDEN]),
            ("mlp.gate_proj", &[INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", &[INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, INTERMEDIATE]),
        ] {
            add(&mut tensors, &format!("model.layers.{i}.{name}.weight"), shape)?;
        }
    }
    add(&mut tensors, "model.embed_tokens.weight", &[VOCABULARY, HIDDEN])?;
    add(&mut tensors, "model.norm.weight", &[HIDDEN])?;
    add(&mut tensors, "lm_head.weight", &[VOCABULARY, HIDDEN])?;
    let options = ShardOptions::new().max_shard_size("200KB".parse()?);
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    let saved = save_sharded(dir, tensors, &options)?;
    ensure!(saved.files.len() > 1, "expected several files");
    Ok(())
}
