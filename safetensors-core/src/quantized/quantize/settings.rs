//! The `quantization_config` of `config.json` that describes what a [`Quantization`] makes.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Quantization;
use crate::error::Result;
use crate::weights::{KEYS, bad_config, is_of_mlx};

/// Entries with their texts, which stay as they are.
type Entries = BTreeMap<String, Box<RawValue>>;

/// The text of a `config.json`, with the description of weights that were quantised, or without any
/// if none were. Everything else in it stays as it is. `modules` are those that were not quantised.
pub(crate) fn with_settings(
    how: Option<Quantization>,
    config: &str,
    modules: &[&str],
) -> Result<String> {
    let wrong = |error: serde_json::Error| bad_config(format!("not a JSON object: {error}"));
    let mut entries: Entries = serde_json::from_str(config).map_err(wrong)?;
    remove_settings(&mut entries);
    // Models of text and images have the settings of the text apart.
    if let Some(inner) = entries.get_mut("text_config")
        && let Ok(mut of_text) = serde_json::from_str::<Entries>(inner.get())
        && remove_settings(&mut of_text)
    {
        *inner = serde_json::value::to_raw_value(&of_text).map_err(wrong)?;
    }
    if let Some(how) = how {
        let settings = format!("{:#}", settings(how, modules)).replace('\n', "\n  ");
        entries
            .insert("quantization_config".into(), RawValue::from_string(settings).map_err(wrong)?);
    }
    let entries = entries.iter().map(|(key, value)| format!("  {}: {value}", Value::from(&**key)));
    Ok(format!("{{\n{}\n}}\n", entries.collect::<Vec<_>>().join(",\n")))
}

/// Removes what describes quantised weights. Returns whether there was anything.
fn remove_settings(entries: &mut Entries) -> bool {
    let before = entries.len();
    entries.retain(|key, value| match key.as_str() {
        "quantization" => !serde_json::from_str(value.get()).is_ok_and(|value| is_of_mlx(&value)),
        key => !KEYS.contains(&key),
    });
    entries.len() < before
}

/// What transformers and vLLM expect.
fn settings(how: Quantization, modules: &[&str]) -> Value {
    let dynamic = |bits: u32, kind: &str| {
        json!({
            "num_bits": bits, "type": kind, "symmetric": true, "strategy": "token",
            "group_size": null, "dynamic": true,
        })
    };
    let weights =
        |bits: u32, kind: &str, strategy: &str, group: Option<u32>, scale: Option<&str>| {
            json!({
                "num_bits": bits, "type": kind, "symmetric": true, "strategy": strategy,
                "group_size": group, "dynamic": false, "scale_dtype": scale, "zp_dtype": scale,
            })
        };
    let (format, weights, activations) = match how {
        Quantization::Fp8Block128 => {
            return json!({
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": modules,
            });
        }
        Quantization::Fp8Channel => {
            ("float-quantized", weights(8, "float", "channel", None, None), dynamic(8, "float"))
        }
        Quantization::Fp8Tensor => {
            ("float-quantized", weights(8, "float", "tensor", None, None), dynamic(8, "float"))
        }
        Quantization::Int8Channel => {
            ("int-quantized", weights(8, "int", "channel", None, None), dynamic(8, "int"))
        }
        Quantization::Nvfp4 => (
            "nvfp4-pack-quantized",
            weights(4, "float", "tensor_group", Some(16), Some("torch.float8_e4m3fn")),
            Value::Null,
        ),
        Quantization::Mxfp4 => (
            "mxfp4-pack-quantized",
            weights(4, "float", "group", Some(32), Some("torch.uint8")),
            Value::Null,
        ),
    };
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
                "output_activations": null,
                "format": format,
            }
        },
        "ignore": modules,
    })
}
