//! `safetensors convert`: converts tensors to other dtypes, names and files.
//!
//! | file | content |
//! |---|---|
//! | `source` | an open input |
//! | `changes` | the options that select, rename and convert tensors |
//! | `casts` | the `--cast` option, dtypes and schemes |
//! | `config` | the `config.json` of quantised weights |
//! | `experts` | experts of a mixture that are split or stacked |
//! | `lora` | LoRA adapters that are merged into the input |
//! | `adapter` | an adapter as input, for another trainer |
//! | `divided` | an output for several ranks |
//! | `gguf` | an output of GGUF |
//! | `loss` | the loss of an input that is its own output |
//! | `preview` | the summary and the table of the output |
//! | `output` | the file or directory to write |
//! | `others` | the other files of a directory |
//! | `report` | the distance of quantised weights from the original ones |
//!
//! A new kind of input is a variant of [`Kind`](crate::input::kind::Kind), and an arm in
//! [`Source::open`] with a `TensorSource` for each tensor.

mod adapter;
mod casts;
mod changes;
mod config;
mod divided;
mod experts;
mod form;
mod gguf;
mod lora;
mod loss;
mod others;
mod output;
mod preview;
mod report;
mod source;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use adapter::LoraFormat;
use changes::{Change, Changes, Stored};
use divided::{Divided, Ranks};
use lora::Loras;
use others::Others;
use output::Output;
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::error::{ExpertProblem, QuantizationProblem, TieProblem};
use safetensors_core::framework::Quoted;
use safetensors_core::lora::Adapter;
use safetensors_core::quantized::LinearLayers;
use safetensors_core::{Error, ErrorKind, Result};
use source::{FLOATS_STAY, Source, layers_of};

use super::Run;
use crate::input::{self, Rewrite};
use crate::model::ranks::warn_of_split_heads;
use crate::output::edit::warn_of_notes;
use crate::output::existing::identity;
use crate::output::file;
use crate::output::writing::{Content, Writing};
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Convert tensors between files: cast, split, merge, select and rename them.
///
/// Each IN is a file of safetensors, PyTorch, GGUF, burn or NumPy; an index; a directory of one of
/// these, of a trainer (DCP, DeepSpeed) or of ranks, read as whole tensors; an address, such as
/// hf://owner/name; or - for a safetensors file on standard input. OUT is a .safetensors, .gguf,
/// .bpk, .npz or .npy file, or else a directory, which gets one file, or several with an index. A
/// .safetensors OUT or a directory may be in a bucket, such as s3://bucket/model. The README has a
/// table of the formats.
///
/// A .gguf file, for llama.cpp and the like, is made of one transformers model, in a directory with
/// its config.json and tokenizer: Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3 for text, or BERT. A
/// tensor without a name in GGUF, or an unknown setting, is an error. NumPy's files hold no
/// metadata and no second names of tied weights.
///
/// Patterns and casts apply to the names in the input. Metadata comes from all inputs; the first
/// value of a key wins. A tied weight is saved once, and the metadata has its other names. Recorded
/// digests are dropped, with a warning. Any size takes only a few MiB of memory per thread.
///
/// OUT is complete or unchanged, even if the command is killed. An existing OUT is replaced only
/// with --force, or after a question on a terminal; or if it is an input and loses no tensor,
/// precision or metadata. One shard of a checkpoint is never replaced by other tensors. In a
/// directory OUT, the index and all numbered shards of the same name are replaced, even if no index
/// lists them.
///
/// A directory OUT gets the other files of a directory IN that has a config.json, an index or the
/// like: tokenizers, chat templates, the licence; the folders tokenizer, additional_chat_templates
/// and custom_generate; and the folders that model_index.json lists, or modules.json, with the
/// weights of its layers. Other weights, signatures and hidden files are not copied, and the
/// summary names them. config.json gets the new dtype and quantisation. adapter_model,
/// diffusion_pytorch_model and pytorch_lora_weights keep these names; other files become
/// model.safetensors.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    help_template = HELP,
    override_usage = "safetensors convert [OPTIONS] <IN>... <OUT>"
)]
pub(crate) struct Args {
    /// Each IN, and OUT last. They are one argument, so that options may stand between them. `HELP`
    /// shows two
    #[arg(
        value_name = "IN",
        required = true,
        hide_short_help = true,
        hide_long_help = true,
        value_parser = crate::input::address::parser()
    )]
    paths: Vec<PathBuf>,
    #[command(flatten, next_help_heading = WEIGHTS)]
    changes: Changes,
    /// With --quantize: show how far each weight is from the original
    ///
    /// Its size relative to IN, the largest error, and the root mean square error, also relative to
    /// the weight's root mean square. Measured while the weights are written
    #[arg(long, requires = "quantize", help_heading = WEIGHTS)]
    report: bool,
    #[command(flatten, next_help_heading = FILES)]
    loras: Loras,
    #[command(flatten, next_help_heading = FILES)]
    lora_format: LoraFormat,
    /// Write OUT.gguf without a tokenizer
    ///
    /// Without this option, the tokenizer must be a tokenizer.json of byte-level BPE, with a
    /// pre-tokenizer that llama.cpp knows
    #[arg(long)]
    no_tokenizer: bool,
    /// Split OUT at this size, such as 500MB or a number of bytes; 5GB by default
    ///
    /// Units are decimal, as on the Hub
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    max_shard_size: Option<MaxShardSize>,
    #[command(flatten, next_help_heading = "Ranks")]
    ranks: Ranks,
    /// Write only tensors: no config.json, tokenizer or other files of IN
    ///
    /// Never copied are files over 256 MiB, beyond the first 1,000 or beyond 1 GiB together,
    /// special files, and links out of IN
    #[arg(long)]
    no_other_files: bool,
    #[command(flatten, next_help_heading = None::<&str>)]
    writing: Writing,
    /// Fail, instead of waiting, if another command is saving to the directory OUT
    #[arg(long, conflicts_with_all = ["ranks", "plan"])]
    no_wait: bool,
}

/// A heading applies to all options up to the next heading.
const WEIGHTS: &str = "Dtypes and quantised weights";
const NAMES: &str = "Tensors and their names";
const FILES: &str = "Inputs and outputs";

/// The headings copy clap's style.
const HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}

\x1b[1m\x1b[4mArguments:\x1b[0m
  <IN>...  A file, index, directory or address (feature remote), or -
  <OUT>    A .safetensors, .gguf, .npz or .npy file, a directory, a bucket

{all-args}{after-help}";

const EXAMPLES: &str = "\
Examples:
  safetensors convert model.safetensors small.safetensors --dtype bf16
  safetensors convert model/ small/ --dtype bf16 --cast '*norm*=keep'
  safetensors convert checkpoint/ model.safetensors
  safetensors convert model.safetensors shards/ --max-shard-size 2GB
  safetensors convert llama/ parts/ --ranks 4
  safetensors convert parts/ whole/
  safetensors convert vision.safetensors text.safetensors both.safetensors
  safetensors convert model/ enc.safetensors -f 'enc.*' --rename '^enc\\.' ''
  safetensors convert weights.npz model.safetensors --prefix model. --dry-run
  safetensors convert pytorch_model.bin model.safetensors
  safetensors convert run/checkpoint-500/ model/ --max-shard-size 5GB
  safetensors convert llama.gguf llama/ --names transformers --dtype bf16
  safetensors convert llama-gptq/ llama/ --dtype bf16
  safetensors convert llama/ llama-fp8/ --quantize fp8-block128 --report
  safetensors convert llama/ small/ --quantize nvfp4 --cast '*.v_proj.*=keep'
  safetensors convert llama/ merged/ --lora adapter/ --lora other/:0.5
  safetensors convert adapter/ lora.safetensors --lora-format kohya
  safetensors convert mixtral/ stacked/ --experts stacked
  safetensors convert llama/ llama.gguf --quantize q8_0
  safetensors convert s3://bucket/model small/ --dtype bf16

Exit codes: 0 written, 1 OUT is unchanged, unless the error says that it is written, 2 wrong
usage.";

/// Parses a size as the Hub writes it, or a number of bytes.
fn shard_size(text: &str) -> Result<MaxShardSize, String> {
    match text.parse() {
        Ok(MaxShardSize(0)) => Err("expected at least 1 byte".into()),
        Ok(size) => Ok(size),
        Err(_) => {
            Err("expected a number with KB, MB, GB or TB, such as 5GB, or a plain number of bytes"
                .into())
        }
    }
}

impl Args {
    /// Returns `true` if an option needs a directory as output.
    fn is_for_directory(&self) -> bool {
        self.max_shard_size.is_some() || self.no_wait || self.ranks.is_given()
    }
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        self.writing.dry_run
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        run(self, out).map_err(|error| advise(error, &self.changes))
    }
}

fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let paths = args.paths.split_last().filter(|(_, inputs)| !inputs.is_empty());
    let Some((output, inputs)) = paths else {
        return Err(wrong_usage("OUT is missing: name the output last, after the inputs"));
    };
    match (Output::new(args, output)?, args.lora_format.lora_format) {
        (None, None) => gguf::run(args, inputs, output, out),
        (None, Some(_)) => Err(wrong_usage("--lora-format cannot write a .gguf file")),
        (Some(output), None) => save(args, inputs, output, out),
        (Some(output), Some(format)) => adapter::save(args, inputs, format, output, out),
    }
}

fn save(
    args: &Args,
    inputs: &[PathBuf],
    mut output: Output,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let change = args.changes.prepare()?;
    let adapters = args.loras.open()?;
    let sources = open(inputs, &change, &adapters)?;
    let mut rewrite = take(&sources, &change)?;
    let metadata = output.take_metadata(&mut rewrite);
    output.name_files(&sources)?;
    output.others = Others::new(args, &sources, &rewrite, output.is_directory())?;
    let read = output.others.config.as_ref().map(|(path, _)| identity(path));
    let mut plan = output
        .plan(&rewrite, args.ranks.is_given())
        .map_err(|error| name_twice(error, &sources, &change))?;
    output.ranks = args.ranks.divided(&rewrite, change.select, &args.writing.options())?;
    if let Some(Divided { plan: ranks, .. }) = &output.ranks {
        warn_of_split_heads(ranks, sources.iter().map(|it| &it.checkpoint))?;
        plan.ranks = Some(ranks.world_size());
    }
    let existing = output.existing()?;
    let names = rewrite.tensors().map(|(name, _)| name.to_owned()).collect();
    let inputs = sources.iter().flat_map(Source::files).chain(read).collect();
    let kept = rewrite.metadata_mut().clone();
    let loss = loss::loss(&existing, &sources, &rewrite, &plan, &kept);
    let content = Content { inputs, names, loss };
    let destination =
        args.writing.permit(existing, &content).map_err(|error| output.advise(error, 0))?;
    sources.iter().for_each(Source::warn_of_notes);
    output.warn_of_loss(&metadata, &plan);
    warn_of_notes(output.path(), &plan.notes);
    let summary = plan.summary()
        + args.changes.experts.summary()
        + &report::share(&rewrite)
        + &report::merged(&adapters, &sources, &rewrite);
    let unmade = match args.changes.names {
        Some(_) => "; not made, and needed by transformers: config.json and the tokenizer",
        None => "",
    };
    let removed = plan.removed(!args.writing.dry_run);
    let end = [removed, plan.others(), unmade.to_owned(), destination.hides()].concat();
    if args.writing.dry_run {
        plan.show(&rewrite, out)?;
        writeln!(out, "\n{}{}{end}", destination.would(summary), plan.named())?;
        return Ok(ExitCode::SUCCESS);
    }
    let stale = output.stale_settings(&sources, &rewrite);
    output
        .write(&rewrite, &destination.options(), plan.bytes)
        .map_err(|error| output.advise(error, plan.bytes))?;
    stale.into_iter().for_each(warn);
    if args.report {
        let told = report::report(&rewrite, out);
        file::printed(told, &input::shown(output.path()), "written")?;
    }
    destination.tell(out, format_args!("{summary}{end}"))?;
    Ok(ExitCode::SUCCESS)
}

fn open(
    inputs: &[PathBuf],
    change: &Change<'_>,
    adapters: &[Adapter],
) -> anyhow::Result<Vec<Source>> {
    if !adapters.is_empty() && inputs.len() > 1 {
        return Err(wrong_usage("--lora needs exactly one IN"));
    }
    if change.changes.experts.is_given() && inputs.len() > 1 {
        return Err(wrong_usage("--experts is for one IN: convert several into one first"));
    }
    let open = |path: &PathBuf| Source::open(path, change, adapters);
    let sources = inputs.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(other) =
        sources.iter().find(|it| !it.is_of_gguf() && change.changes.names.is_some())
    {
        let problem = "--names transformers needs a GGUF file as IN";
        return Err(wrong_usage(format!("{}: {problem}", other.name())));
    }
    Ok(sources)
}

fn take<'a>(sources: &'a [Source], change: &Change<'_>) -> anyhow::Result<Rewrite<'a>> {
    let mut stored = Stored::default();
    for source in sources {
        let quantised = source.stored().filter(|(_, stored)| stored.is_quantised);
        stored.quantised.extend(quantised.map(|(name, _)| name.to_owned()));
        stored.quantised.extend(source.numbers.iter().map(|weight| weight.name.clone()));
        stored.kept.extend(source.kept.iter().map(String::as_str));
        stored.merged.extend(source.merged.iter().map(|(name, dtype)| (name.as_str(), *dtype)));
        stored.layers = layers_of(change, &source.checkpoint, stored.layers)?;
    }
    let mut names: Vec<_> = sources.iter().flat_map(Source::names).collect();
    names.extend(&stored.kept);
    let numbers = sources.iter().flat_map(|source| &source.numbers).collect();
    change.check(&names, numbers, !stored.quantised.is_empty())?;
    let rewrite = match change.apply(taken(sources, change, &stored.layers)?, &stored) {
        // Codes and scales may be of different inputs.
        Err(error)
            if sources.len() > 1
                && error.downcast_ref().and_then(|it| change.left_by(it)) == Some("") =>
        {
            warn(format!("{error}; {FLOATS_STAY}"));
            stored.kept = names.iter().copied().collect();
            change.apply(taken(sources, change, &stored.layers)?, &stored)?
        }
        applied => applied?,
    };
    sources.iter().for_each(|source| source.warn_of_lone_codes(&rewrite));
    if rewrite.tensors().len() == 0 && !names.is_empty() {
        anyhow::bail!(
            "no tensor is left to be written; `safetensors inspect --flat` shows the names"
        );
    }
    Ok(rewrite)
}

fn taken<'a>(
    sources: &'a [Source],
    change: &Change<'_>,
    layers: &LinearLayers,
) -> anyhow::Result<Rewrite<'a>> {
    let mut rewrite = Rewrite::default();
    for source in sources {
        source.refuse_unreadable(change, layers)?;
        rewrite = rewrite.merge(&source.checkpoint);
    }
    if change.changes.names.is_some() {
        // transformers refuses a file with only other entries in its metadata.
        rewrite.metadata_mut().entry("format".into()).or_insert_with(|| "pt".into());
    }
    Ok(change.select(rewrite))
}

/// Adds a remedy about quantised weights, and about the metadata of tied weights.
fn advise(error: anyhow::Error, changes: &Changes) -> anyhow::Error {
    use ErrorKind::{Adapter, Experts, Quantization, Tie};
    let Some(cause) = error.downcast_ref::<Error>() else { return error };
    let mut told = format!("{error:#}");
    let advice = match cause.kind() {
        Tie { problem: TieProblem::NotRecorded { .. } } => {
            "skip it with --drop, or rename it with --rename"
        }
        kind @ Quantization { problem: QuantizationProblem::Codes { scheme, weight } } => {
            // Core's own remedy is for programs.
            let same = format!("codes of the weight {}, stored as {scheme}", Quoted(weight));
            told = told.replace(&kind.to_string(), &same);
            "--dequantize f32 makes numbers of it, --keep-quantized copies the tensors as they are \
             stored"
        }
        // Of settings that cannot be read.
        Quantization { problem: QuantizationProblem::Config { .. } }
            if cause.tensor().is_none() =>
        {
            return error;
        }
        Quantization { problem: QuantizationProblem::Arrangement { .. } } => {
            "--dequantize f32 makes numbers of the weights"
        }
        Quantization { .. } if changes.quantize.is_some() => "--drop skips a tensor",
        Quantization { .. } => "--keep-quantized copies the tensors as they are stored",
        // An adapter for a weight that is not one of numbers.
        Adapter { problem } if problem.to_string().contains("dequantise") => {
            "--dequantize f32 does that"
        }
        Adapter { problem } if problem.to_string().contains(" without the ") => {
            "--lora-base MODEL names the base"
        }
        Experts { problem: ExpertProblem::UnknownModel { .. } } => {
            // Core's own remedy is for programs.
            told = told.rsplit_once("; ").map_or(told.clone(), |(cause, _)| cause.to_owned());
            "--gate-up sets it: first, last or interleaved; --transposed, if outputs are columns"
        }
        _ => return error,
    };
    anyhow::anyhow!("{told}; {advice}")
}

/// Adds the tensors and inputs with the same name, and a remedy.
fn name_twice(error: anyhow::Error, sources: &[Source], change: &Change<'_>) -> anyhow::Error {
    let name = match error.downcast_ref::<Error>() {
        Some(twice) if matches!(twice.kind(), ErrorKind::DuplicateTensor) => {
            twice.tensor().unwrap_or_default()
        }
        _ => return error,
    };
    let mut from = Vec::new();
    for source in sources {
        let names = source.names().into_iter();
        for old in names.filter(|old| !change.drops(old) && change.rename(old) == name) {
            from.push((!change.takes(old), format!("{} of {}", text::short(old), source.name())));
        }
    }
    // An alias is taken along with its tensor, even if it is not taken by its own name.
    from.sort_by_key(|(is_not_taken, _)| *is_not_taken);
    // Two names are enough to explain the error.
    let from: Vec<_> = from.into_iter().take(2).map(|(_, name)| name).collect();
    anyhow::anyhow!(
        "{error}: {}; rename one with --rename, skip one with --drop, or first convert one input \
         alone, with --prefix",
        from.join(" and ")
    )
}
