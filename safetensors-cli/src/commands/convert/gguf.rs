//! Writes a model of transformers as GGUF, under llama.cpp's names.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_formats::gguf::{Model, Notes, Type, Writer};
use safetensors_formats::{Error, ErrorKind, Format};

use super::casts::Scheme;
use super::output::{FOR_DIRECTORY, OUT};
use super::source::Source;
use super::{Args, open, report, take};
use crate::input::{self, address, other};
use crate::terminal::progress::Progress;
use crate::terminal::report::wrong_usage;
use crate::terminal::table::{self, Column, Columns};
use crate::terminal::text;

pub(super) fn run(
    args: &Args,
    inputs: &[PathBuf],
    output: &Path,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let wrong = |problem: String| wrong_usage(format!("{}: {problem}", input::name(output)));
    let kind = stored_as(args).map_err(wrong)?;
    let directory = directory_of(inputs)?;
    let change = args.changes.prepare()?.dequantizing();
    let adapters = args.loras.open()?;
    let sources = open(inputs, &change, &adapters)?;
    let rewrite = take(&sources, &change)?;
    let mut model = Model::open(directory).map_err(advise)?;
    if !args.no_tokenizer {
        model.read_tokenizer().map_err(advise)?;
    }
    let tensors = rewrite.tensors().map(|(name, tensor)| (name.to_owned(), tensor));
    let (writer, notes) = model.writer(tensors, kind).map_err(advise)?;
    let destination = args.writing.file(output, OUT)?;
    sources.iter().for_each(Source::warn_of_notes);
    let bytes = writer.total_size();
    let count = text::counted(writer.tensors().len() as u64, "tensor");
    let summary = format!("{count}, {}{}", text::size(bytes), summary_of(&notes));
    let summary = summary + &report::merged(&adapters, &sources, &rewrite);
    if args.writing.dry_run {
        show(&writer, out)?;
        writeln!(out, "\n{}", destination.would(summary))?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::bytes(bytes);
    destination.write(bytes, |file| {
        writer.write(file.get_ref(), |bytes| progress.add(bytes))?;
        Ok(rewrite.check_unchanged()?)
    })?;
    drop(progress);
    destination.tell(out, summary)?;
    Ok(ExitCode::SUCCESS)
}

fn stored_as(args: &Args) -> Result<Type, String> {
    if args.is_for_directory() {
        return Err(FOR_DIRECTORY.into());
    }
    if args.changes.name_dtypes() {
        return Err("--quantize decides the dtypes of a GGUF file; --dtype, --cast, \
                    --dequantize, --keep-quantized and --overflow are for other outputs"
            .into());
    }
    if args.report {
        return Err("--report is for other outputs".into());
    }
    match args.changes.quantize {
        Some(Scheme::Gguf(kind)) => Ok(kind),
        Some(Scheme::Tensors(_)) | None => {
            Err(format!("choose how weights are stored: --quantize with {}", Scheme::for_gguf()))
        }
    }
}

/// Returns the directory with the files next to the weights.
fn directory_of(inputs: &[PathBuf]) -> anyhow::Result<&Path> {
    let [input] = inputs else {
        return Err(wrong_usage("a GGUF file is made of one model: name one IN"));
    };
    if address::in_path(input).is_some() || input::is_stdin(input) {
        return Err(wrong_usage(format!(
            "{}: config.json and the tokenizer are read next to IN, which must be on the disk",
            input::name(input)
        )));
    }
    if input.is_file() && other::detect(input) == Some(Format::Gguf) {
        return Err(wrong_usage(format!(
            "{}: already a GGUF file; llama.cpp's llama-quantize changes how its weights are \
             stored",
            input::name(input)
        )));
    }
    match input.parent() {
        _ if input.is_dir() => Ok(input),
        Some(parent) if parent != Path::new("") => Ok(parent),
        _ => Ok(Path::new(".")),
    }
}

fn summary_of(notes: &Notes) -> String {
    let listed = |what: &str, names: &[String]| match names.len() as u64 {
        0 => String::new(),
        count => format!("; {} {what}: {}", text::count(count), text::some(names)),
    };
    listed("of them F16, because their rows are not whole blocks", &notes.not_quantised)
        + &listed("skipped, which GGUF does not need", &notes.left_out)
}

fn show(writer: &Writer<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let columns: &Columns<'_, (&str, Type, &[usize])> = &[
        (Column::name("name").rank(0).distinct(), &|(name, ..)| text::name(name)),
        (Column::word("type").rank(2), &|(_, kind, _)| kind.to_string()),
        (Column::name("shape").rank(4), &|(.., shape)| text::shape(shape)),
        (Column::number("size").rank(3), &|(_, kind, shape)| {
            text::size(kind.byte_len(shape).unwrap_or(u64::MAX))
        }),
    ];
    Ok(table::list(writer.tensors(), columns, out)?)
}

fn advise(error: Error) -> anyhow::Error {
    let advice = match error.other() {
        Some(ErrorKind::BadTokenizer { .. }) => "--no-tokenizer leaves the tokenizer out",
        Some(ErrorKind::NoGgufName { .. }) => "--drop skips it, --rename names it otherwise",
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}; {advice}")
}
