//! LoRA adapters that are merged into the input.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use safetensors_core::Dtype;
use safetensors_core::load::LazyTensor;
use safetensors_core::lora::{Adapter, AdapterFormat, ExpertsInput};

use crate::input::{self, Checkpoint, address};
use crate::terminal::report::warn;
use crate::terminal::text;

/// The options that name adapters.
#[derive(Debug, clap::Args)]
pub(super) struct Loras {
    /// Merge this LoRA adapter into the weights of IN, multiplied by SCALE
    ///
    /// A directory of PEFT or mlx-lm, a file of diffusers, ComfyUI, kohya or LyCORIS, or the
    /// address of one: LoRA, DoRA, LoHa, LoKr or full differences. SCALE is 1 by default. The sum
    /// is computed as f32, and rounded once to the weight's dtype in OUT. Quantised weights need
    /// --dequantize or --dtype. A module that fits no weight is an error. IN must be one
    /// checkpoint. May be repeated: adapters are added in this order
    #[arg(
        long = "lora",
        value_name = "ADAPTER[:SCALE]",
        value_parser = PathBufValueParser::new().try_map(|path| scaled(&path))
    )]
    loras: Vec<Scaled>,
    /// Add vocabulary rows that IN lacks and a --lora adapter has
    ///
    /// They are zero before the adapter changes or replaces them
    #[arg(long, requires = "loras")]
    pad_vocab: bool,
    /// The dimension of stacked experts that lora_A multiplies, where equal lengths hide it
    ///
    /// middle for PEFT before 0.19, and for models that store [experts, in, out], such as gpt-oss;
    /// otherwise last
    #[arg(
        long,
        requires = "loras",
        value_name = "DIMENSION",
        value_parser = PossibleValuesParser::new(["middle", "last"]).map(|it| match &*it {
            "last" => ExpertsInput::Last,
            _ => ExpertsInput::Middle,
        })
    )]
    lora_experts: Option<ExpertsInput>,
}

/// The path or address of an adapter, and its factor.
#[derive(Clone, Debug, PartialEq)]
struct Scaled {
    path: PathBuf,
    scale: f64,
}

/// Divides `ADAPTER:SCALE`. If the whole text is a path on the disk, it means that path, and so
/// does every text that does not end in a number.
fn scaled(path: &Path) -> Result<Scaled, String> {
    let whole = Scaled { path: path.to_owned(), scale: 1.0 };
    let Some((name, number)) = path.to_str().and_then(|text| text.rsplit_once(':')) else {
        return Ok(whole);
    };
    let is_number = number.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    match number.parse::<f64>() {
        Ok(scale) if is_number && scale.is_finite() && !name.is_empty() && !path.exists() => {
            Ok(Scaled { path: name.into(), scale })
        }
        _ if !path.exists() && Path::new(name).exists() => {
            Err(format!("expected a finite number after the last colon, found {number:?}"))
        }
        _ => Ok(whole),
    }
}

impl Loras {
    /// Opens the adapters.
    pub(super) fn open(&self) -> anyhow::Result<Vec<Adapter>> {
        let open = |Scaled { path, scale }: &Scaled| {
            let checkpoint = open(path).context("--lora")?;
            let adapter = Adapter::new(checkpoint).context("--lora")?.scale(*scale);
            let adapter = adapter.pad_vocab(self.pad_vocab);
            Ok(match self.lora_experts {
                Some(input) => adapter.experts_input(input),
                None => adapter,
            })
        };
        self.loras.iter().map(open).collect()
    }
}

/// Opens the file of an adapter.
pub(super) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    let address =
        address::in_path(path).filter(|it| !it.ends_with(".safetensors") && !it.contains('?'));
    for name in [AdapterFormat::Peft, AdapterFormat::Mlx].map(AdapterFormat::file_name) {
        let file = path.join(name);
        if let Some(address) = &address {
            let file = format!("{}/{name}", address.trim_end_matches('/'));
            if let Some(found) = address::find(&file)? {
                return Ok(found);
            }
        } else if file.is_file() {
            return input::open(&file);
        }
    }
    input::open(path)
}

/// Returns the checkpoint with adapters merged into it, and the dtypes that the merged tensors have
/// there. They are F32 until they are written, so that a sum is rounded once, as the options say.
pub(super) fn merged(
    adapters: &[Adapter],
    checkpoint: Checkpoint,
) -> anyhow::Result<(Checkpoint, HashMap<String, Dtype>)> {
    let mut dtypes = HashMap::new();
    if adapters.is_empty() {
        return Ok((checkpoint, dtypes));
    }
    for adapter in adapters {
        let left = adapter.left(&checkpoint).context("--lora")?;
        if !left.is_empty() {
            warn(format!("--lora: modules of another model are skipped: {}", text::some(left)));
        }
    }
    let shape = |tensor: LazyTensor<'_, _>| (tensor.name().to_owned(), tensor.shape().to_vec());
    let before: HashMap<_, _> = checkpoint.tensors().map(shape).collect();
    let dtype = |name: &str, dtype| {
        dtypes.insert(name.to_owned(), dtype);
        Dtype::F32
    };
    let merged = checkpoint.merged_as(adapters.iter().cloned(), dtype).context("--lora")?;
    if let Some(grown) = merged
        .tensors()
        .find(|tensor| before.get(tensor.name()).is_some_and(|shape| shape != tensor.shape()))
    {
        let rows = grown.shape()[0];
        warn(format!("--pad-vocab: set vocab_size of config.json to {rows}, the rows of OUT"));
    }
    Ok((merged.into_boxed(), dtypes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_at_the_end_is_the_scale() {
        for (text, path, scale) in [
            ("lora", "lora", 1.0),
            ("lora:0.5", "lora", 0.5),
            ("lora:-1", "lora", -1.0),
            ("a:b:.25", "a:b", 0.25),
            ("s3://bucket/lora", "s3://bucket/lora", 1.0),
            ("s3://bucket/lora:2e-1", "s3://bucket/lora", 0.2),
            ("hf://owner/name@main:1", "hf://owner/name@main", 1.0),
            ("lora:nan", "lora:nan", 1.0),
            ("lora:1e999", "lora:1e999", 1.0),
            (":1", ":1", 1.0),
        ] {
            assert_eq!(scaled(Path::new(text)), Ok(Scaled { path: path.into(), scale }), "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lora:2");
        std::fs::write(&path, "").unwrap();
        assert_eq!(scaled(&path), Ok(Scaled { path: path.clone(), scale: 1.0 }));
        for number in ["abc", "", "nan", "0,5"] {
            let wrong = format!("{}:{number}", path.display());
            assert!(scaled(Path::new(&wrong)).unwrap_err().contains("finite number"), "{number}");
        }
    }
}
