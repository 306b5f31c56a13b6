//! [`AdapterFormat`]: the names of adapters in the formats of trainers.

use std::fmt;

use crate::model::lora::kinds::{ENDS, End, Kind, MODELS, Model, Role};
use crate::model::lora::{MLX_FILE, PEFT_FILE};

/// The format in which a trainer saves adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterFormat {
    /// PEFT and vLLM: a directory with `adapter_config.json`.
    Peft,
    /// A file with the settings in its metadata.
    Diffusers,
    /// kohya's scripts and ComfyUI: a file with `_` instead of `.` in names of modules.
    Kohya,
    /// mlx-lm: a directory with `adapter_config.json`. The matrices are transposed.
    Mlx,
}

impl fmt::Display for AdapterFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

impl AdapterFormat {
    /// Returns its name, the name of its file, and the kinds with the names of its tensors, LoRA
    /// first.
    fn row(self) -> (&'static str, &'static str, &'static [Kind]) {
        const KOHYA: &[Kind] = &[Kind::Kohya, Kind::Full, Kind::Loha, Kind::Lokr];
        const PEFT: &[Kind] = &[Kind::Peft, Kind::Embedding];
        match self {
            Self::Peft => ("PEFT", PEFT_FILE, PEFT),
            Self::Diffusers => ("diffusers", "pytorch_lora_weights.safetensors", PEFT),
            Self::Kohya => ("kohya", "lora.safetensors", KOHYA),
            Self::Mlx => ("mlx-lm", MLX_FILE, &[Kind::Mlx]),
        }
    }

    /// Returns the name of the file that programs look for in a directory.
    pub fn file_name(self) -> &'static str {
        self.row().1
    }

    /// Returns `true` if `adapter_config.json` has the settings.
    pub fn has_settings(self) -> bool {
        matches!(self, Self::Peft | Self::Mlx)
    }

    /// Returns the end of the name of a module's tensor. `None` if there is no such tensor.
    pub(super) fn end(self, is_embedding: bool, kind: Kind, role: Role) -> Option<&'static End> {
        let kinds = self.row().2;
        let kind = match kinds {
            [_, Kind::Embedding] if is_embedding && kind.is_lora() => Kind::Embedding,
            [lora, ..] if kind.is_lora() => *lora,
            _ => kind,
        };
        let is_of_kind = |it| it == kind || role.is_of_any_kind() && kinds.contains(&it);
        let mut ends = ENDS.iter().filter(|end| end.2 == role && is_of_kind(end.1));
        ends.next().filter(|_| kinds.contains(&kind))
    }
}

/// Finds the model of a module by its group in the adapter, or by its name. Returns the name
/// without the model.
pub(super) fn model_of<'n>(group: &str, name: &'n str) -> (Option<&'static str>, &'n str) {
    // A transformer may have the prefix of a UNet.
    let is_encoder = group.starts_with("lora_te");
    let known = |(model, prefix, _): &&Model| *model == group || *prefix == group && is_encoder;
    let named = |(.., starts): &&Model| starts.iter().any(|start| name.starts_with(start));
    let model = MODELS.iter().find(known).or_else(|| MODELS.iter().find(named)).map(|it| it.0);
    let rest = model.and_then(|model| name.strip_prefix(model)?.strip_prefix('.'));
    (model, rest.unwrap_or(name))
}

/// Returns the name of a module in kohya's files. `is_only` if no other text encoder is there.
pub(super) fn flattened(model: Option<&str>, name: &str, is_only: bool) -> String {
    let known = MODELS.iter().find(|it| model == Some(it.0));
    let (prefix, name) = match (known, name.strip_prefix("model.diffusion_model.")) {
        (Some(("text_encoder", ..)), _) if is_only => ("lora_te_", name),
        (Some((_, prefix, _)), _) => (*prefix, name),
        // A checkpoint with all models in one file.
        (None, Some(rest)) => ("lora_unet_", rest),
        // LyCORIS names modules of any model so.
        (None, None) => ("lycoris_", name),
    };
    // Names in text encoders of transformers 5 lack the first part.
    let is_clip = prefix.starts_with("lora_te") && name.starts_with("encoder.layers.");
    format!("{prefix}{}{}", if is_clip { "text_model_" } else { "" }, name.replace('.', "_"))
}

/// Returns the name of a module within its layer, as mlx-lm's setting `keys` has it.
pub(super) fn in_layer(name: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let number = name.split('.').find(|part| is_number(part));
    let layer = number.and_then(|number| name.split_once(&format!(".{number}.")));
    layer.map_or(name, |(_, inside)| inside)
}
