//! [`LoraFormat`]: the `--lora-format` option, the format of another trainer's adapters.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::TypedValueParser;
use safetensors_core::lora::AdapterFormat;

use super::casts::named;
use super::others::SETTINGS;
use super::output::Output;
use super::{Args, lora};
use crate::input::{self, path_of};
use crate::output::edit::warn_of_notes;
use crate::output::existing::{files_of, identity};
use crate::output::writing::Content;
use crate::terminal::report::wrong_usage;

/// The options for an adapter as IN.
#[derive(Debug, clap::Args)]
pub(super) struct LoraFormat {
    /// Write IN, a LoRA adapter, in the format of another trainer
    ///
    /// peft and mlx write a directory with adapter_config.json; diffusers and kohya, a .safetensors
    /// file or a directory. Values keep their bits; mlx has transposed matrices. Stacked experts
    /// (target_parameters) become one module for each expert, as vLLM reads them. A part that the
    /// format cannot store is an error, such as LoHa in all but kohya
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = formats(),
        conflicts_with_all = [
            "casts", "dcp", "dequantize", "drop", "dtype", "experts", "keep_quantized", "loras",
            "max_shard_size", "names", "no_other_files", "no_tokenizer", "optimizer_state",
            "patterns", "plan", "prefix", "quantize", "ranks", "rename",
        ]
    )]
    pub(super) lora_format: Option<AdapterFormat>,
    /// With --lora-format: the model of the adapter
    ///
    /// Its names show where kohya's _ was a dot, and its config.json how experts are stacked
    #[arg(
        long,
        value_name = "MODEL",
        requires = "lora_format",
        value_parser = crate::input::address::parser()
    )]
    lora_base: Option<PathBuf>,
}

fn formats() -> impl TypedValueParser<Value = AdapterFormat> {
    named([
        (AdapterFormat::Peft, "peft", "PEFT, and vLLM"),
        (AdapterFormat::Diffusers, "diffusers", "diffusers"),
        (AdapterFormat::Kohya, "kohya", "kohya's scripts, LyCORIS, ComfyUI"),
        (AdapterFormat::Mlx, "mlx", "mlx-lm"),
    ])
}

/// Saves an adapter in another format.
pub(super) fn save(
    args: &Args,
    inputs: &[PathBuf],
    format: AdapterFormat,
    mut output: Output,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let [input] = inputs else { return Err(wrong_usage("--lora-format needs exactly one IN")) };
    output.name_adapter(format)?;
    let adapter = lora::open(input)?;
    let mut files = files_of(&adapter);
    files.extend(path_of(&adapter).map(|path| identity(&path.with_file_name(SETTINGS))));
    let base = args.lora_format.lora_base.as_deref().map(input::open).transpose()?;
    let converted = adapter.adapter_as(format, base.as_ref()).context("--lora-format")?;
    let rewrite = converted.rewrite()?;
    let settings = converted.settings().map(|text| (SETTINGS, text.to_owned()));
    output.others.settings.extend(settings);
    let plan = output.plan(&rewrite, false)?;
    let existing = output.existing()?;
    let is_input = existing.has_any(&files);
    let content = Content {
        inputs: files,
        names: rewrite.tensors().map(|(name, _)| name.to_owned()).collect(),
        loss: is_input.then(|| "its names would change".to_owned()),
    };
    let destination =
        args.writing.permit(existing, &content).map_err(|error| output.advise(error, 0))?;
    warn_of_notes(output.path(), &plan.notes);
    let summary = format!("{}, in the format of {format}{}", plan.summary(), destination.hides());
    if args.writing.dry_run {
        plan.show(&rewrite, out)?;
        writeln!(out, "\n{}{}", destination.would(summary), plan.named())?;
        return Ok(ExitCode::SUCCESS);
    }
    output
        .write(&rewrite, &destination.options(), plan.bytes)
        .map_err(|error| output.advise(error, plan.bytes))?;
    destination.tell(out, summary)?;
    Ok(ExitCode::SUCCESS)
}
