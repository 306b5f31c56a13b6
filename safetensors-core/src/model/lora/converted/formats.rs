//! [`AdapterFormat`]: the names of adapters in the formats of trainers.

use std::fmt;

use crate::model::lora::kinds::{ENDS, Family, Kind, Role};
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
        f.write_str(match self {
            Self::Peft => "PEFT",
            Self::Diffusers => "diffusers",
            Self::Kohya => "kohya",
            Self::Mlx => "mlx-lm",
        })
    }
}

impl AdapterFormat {
    /// Returns the name of the file that programs look for in a directory.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Peft => PEFT_FILE,
            Self::Diffusers => "pytorch_lora_weights.safetensors",
            Self::Kohya => "lora.safetensors",
            Self::Mlx => MLX_FILE,
        }
    }

    /// Returns `true` if `adapter_config.json` has the settings.
    pub fn has_settings(self) -> bool {
        matches!(self, Self::Peft | Self::Mlx)
    }

    /// Returns the end of the name of a module's tensor. `None` if there is no such tensor.
    pub(super) fn end(self, is_embedding: bool, kind: Kind, role: Role) -> Option<&'static str> {
        let families: &[Family] = match self {
            Self::Kohya => &[Family::Kohya, Family::Lycoris],
            Self::Mlx => &[Family::Mlx],
            _ if is_embedding => &[Family::Embedding, Family::Peft],
            _ => &[Family::Peft],
        };
        let is_of_kind = |it| it == kind || role.is_of_any_kind();
        let end =
            |family| ENDS.iter().find(|end| end.1 == family && is_of_kind(end.2) && end.3 == role);
        families.iter().find_map(|family| end(*family)).map(|end| end.0)
    }
}

/// A model of a pipeline.
pub(super) struct Model {
    /// Its name in files of diffusers.
    pub(super) name: &'static str,
    /// The start of names in kohya's files.
    prefix: &'static str,
    /// The starts of the names of its modules.
    starts: &'static [&'static str],
}

const MODELS: &[Model] = &[
    Model {
        name: "unet",
        prefix: "lora_unet_",
        starts: &["down_blocks.", "up_blocks.", "mid_block."],
    },
    Model {
        name: "transformer",
        prefix: "lora_unet_",
        starts: &["transformer_blocks.", "single_transformer_blocks."],
    },
    Model { name: "text_encoder", prefix: "lora_te1_", starts: &["text_model."] },
    Model { name: "text_encoder_2", prefix: "lora_te2_", starts: &[] },
    Model { name: "text_encoder_3", prefix: "lora_te3_", starts: &[] },
];

/// Finds the model of a module by its group in the adapter, or by its name. Returns the name
/// without the model.
pub(super) fn model_of<'n>(group: &str, name: &'n str) -> (Option<&'static Model>, &'n str) {
    let group = if group == "lora_te_" { "lora_te1_" } else { group };
    let is_known = |model: &&Model| {
        model.name == group || model.prefix == group && group.starts_with("lora_te")
    };
    let is_named = |model: &&Model| model.starts.iter().any(|start| name.starts_with(start));
    let model = MODELS.iter().find(is_known).or_else(|| MODELS.iter().find(is_named));
    let rest = model.and_then(|model| name.strip_prefix(model.name)?.strip_prefix('.'));
    (model, rest.unwrap_or(name))
}

/// Returns the name of a module in kohya's files. `is_only` if no other text encoder is there.
pub(super) fn flattened(model: Option<&Model>, name: &str, is_only: bool) -> String {
    let (prefix, name) = match (model, name.strip_prefix("model.diffusion_model.")) {
        (Some(Model { name: "text_encoder", .. }), _) if is_only => ("lora_te_", name),
        (Some(model), _) => (model.prefix, name),
        // A checkpoint with all models in one file.
        (None, Some(rest)) => ("lora_unet_", rest),
        // LyCORIS names modules of any model so.
        (None, None) => ("lycoris_", name),
    };
    format!("{prefix}{}", name.replace('.', "_"))
}

/// Returns the name of a module within its layer, as mlx-lm's setting `keys` has it.
pub(super) fn in_layer(name: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let mut rest = name;
    while let Some((part, after)) = rest.split_once('.') {
        if is_number(part) {
            return after;
        }
        rest = after;
    }
    name
}
