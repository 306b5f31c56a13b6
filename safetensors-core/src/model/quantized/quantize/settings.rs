//! The `config.json` of a quantised checkpoint: its `quantization_config` and dtype.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Quantization;
use crate::format::error::{Error, Result};
use crate::format::python_json;
use crate::weights::{KEYS, bad_config, is_of_mlx};

type Entries<'a> = BTreeMap<String, Cow<'a, str>>;

/// How deep in objects a dtype is looked for.
const DEPTH: usize = 4;

/// `modules` were not quantised. Also returns whether there was another description.
pub(crate) fn with_settings(
    how: Option<Quantization>,
    config: &str,
    modules: &[&str],
) -> Result<(String, bool)> {
    let mut entries = parsed(config)?;
    let mut is_other = remove_settings(&mut entries);
    // Models of text and images have the settings of the text apart.
    if let Some(inner) = entries.get_mut("text_config")
        && let Ok(mut of_text) = parsed(inner)
        && remove_settings(&mut of_text)
    {
        is_other = true;
        let of_text = object(&of_text, "    ");
        *inner = of_text.into();
    }
    if let Some(how) = how {
        let settings = format!("{:#}", settings(how, modules)).replace('\n', "\n  ");
        entries.insert("quantization_config".into(), settings.into());
    }
    Ok((object(&entries, "  ") + "\n", is_other))
}

/// Replaces the first dtype, also in the settings of parts of the model.
pub(crate) fn with_dtype(config: &str, dtype: Option<&str>) -> Result<String> {
    parsed(config)?;
    let Some(dtype) = dtype else { return Ok(config.to_owned()) };
    let mut found = Vec::new();
    find_dtypes(config, DEPTH, &mut found);
    let Some(&first) = found.first() else { return Ok(config.to_owned()) };
    found.retain(|text| *text == first);
    let start = |text: &str| text.as_ptr().addr() - config.as_ptr().addr();
    found.sort_by_key(|text| start(text));
    let mut changed = config.to_owned();
    for text in found.into_iter().rev() {
        changed.replace_range(start(text)..start(text) + text.len(), &format!("\"{dtype}\""));
    }
    Ok(changed)
}

fn find_dtypes<'a>(object: &'a str, depth: usize, found: &mut Vec<&'a str>) {
    let Ok(entries) = python_json::entries(object) else { return };
    let own = ["dtype", "torch_dtype"].iter().filter_map(|key| entries.get(*key).copied());
    found.extend(own.filter(|text| DTYPES.contains(text)));
    for inner in entries.into_values().filter(|text| depth > 1 && text.starts_with('{')) {
        find_dtypes(inner, depth - 1, found);
    }
}

const DTYPES: [&str; 4] = ["\"bfloat16\"", "\"float16\"", "\"float32\"", "\"float64\""];

fn parsed(config: &str) -> Result<Entries<'_>> {
    let wrong = |error| -> Error { bad_config(format!("not a JSON object: {error}")) };
    let entries = python_json::entries(config).map_err(wrong)?;
    Ok(entries.into_iter().map(|(key, text)| (key, text.into())).collect())
}

/// Writes entries of JSON, each with this indent.
pub(crate) fn object(entries: &Entries<'_>, indent: &str) -> String {
    let entry =
        |(key, text): (&String, &Cow<'_, str>)| format!("{indent}{}: {text}", Value::from(&**key));
    let entries = entries.iter().map(entry).collect::<Vec<_>>().join(",\n");
    format!("{{\n{entries}\n{}}}", &indent[2..])
}

fn remove_settings(entries: &mut Entries<'_>) -> bool {
    let before = entries.len();
    entries.retain(|key, text| match key.as_str() {
        "quantization" => !python_json::read(text.as_bytes()).is_ok_and(|value| is_of_mlx(&value)),
        key => !KEYS.contains(&key),
    });
    entries.len() < before
}

fn settings(how: Quantization, modules: &[&str]) -> Value {
    let (format, bits, kind, strategy) = match how {
        Quantization::Fp8Block128 => {
            return json!({
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": modules,
            });
        }
        Quantization::Fp8Channel => ("float-quantized", 8, "float", "channel"),
        Quantization::Fp8Tensor => ("float-quantized", 8, "float", "tensor"),
        Quantization::Int8Channel => ("int-quantized", 8, "int", "channel"),
        Quantization::Nvfp4 => ("nvfp4-pack-quantized", 4, "float", "tensor_group"),
        Quantization::Mxfp4 => ("mxfp4-pack-quantized", 4, "float", "group"),
    };
    let scale = match how {
        Quantization::Nvfp4 => Some("torch.float8_e4m3fn"),
        Quantization::Mxfp4 => Some("torch.uint8"),
        _ => None,
    };
    let activations = (bits == 8).then(|| {
        json!({
            "num_bits": bits, "type": kind, "symmetric": true, "strategy": "token",
            "group_size": null, "dynamic": true,
        })
    });
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": bits, "type": kind, "symmetric": true, "strategy": strategy,
                    "group_size": Some(how.group()).filter(|&group| group > 1),
                    "dynamic": false, "scale_dtype": scale, "zp_dtype": scale,
                },
                "input_activations": activations,
                "output_activations": null,
                "format": format,
            }
        },
        "ignore": modules,
    })
}
