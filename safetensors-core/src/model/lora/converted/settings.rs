//! The settings of adapters, as their libraries write them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::formats::{AdapterFormat, in_layer};
use super::{Adapter, Item, alpha, cannot};
use crate::format::error::Result;
use crate::model::lora::kinds::Role;

/// Returns the settings of a format that has some, as JSON.
pub(super) fn settings(
    adapter: &Adapter,
    items: &[Item<'_>],
    format: AdapterFormat,
) -> Result<Option<String>> {
    if format == AdapterFormat::Kohya {
        return Ok(None);
    }
    let mut models = BTreeMap::<&str, Vec<&Item<'_>>>::new();
    for item in items {
        models.entry(item.model.map_or("", |model| model.name)).or_default().push(item);
    }
    let mut all = Map::new();
    for (model, items) in &models {
        let count = items.iter().filter(|item| item.module.magnitude.is_some()).count();
        if count != 0 && count != items.len() {
            return Err(cannot(format, "DoRA of only some modules".into()).into());
        }
        let settings = peft(items, count > 0)?;
        all.extend(settings.into_iter().map(|(key, value)| (format!("{model}.{key}"), value)));
    }
    if format == AdapterFormat::Diffusers {
        return Ok(Some(Value::Object(all).to_string()));
    }
    if models.len() > 1 {
        let names: Vec<_> = models.into_keys().collect();
        return Err(cannot(format, format!("several models: {}", names.join(", "))).into());
    }
    let items: Vec<_> = items.iter().collect();
    let is_dora = items.iter().any(|item| item.module.magnitude.is_some());
    let mut settings = match format {
        AdapterFormat::Mlx => mlx(&items, is_dora)?,
        _ => peft(&items, is_dora)?,
    };
    if format == AdapterFormat::Peft {
        let module = |name: &str| name.rsplit_once('.').map_or("", |it| it.0).to_owned();
        let whole = adapter.parts.whole.iter().map(|wanted| module(&wanted.name));
        let whole: BTreeSet<_> = whole.collect();
        settings.insert("modules_to_save".into(), json!(whole));
    }
    Ok(Some(format!("{:#}\n", Value::Object(settings))))
}

/// Returns settings of PEFT. Patterns are whole names.
fn peft(items: &[&Item<'_>], is_dora: bool) -> Result<Map<String, Value>> {
    let of_item = |item: &&Item<'_>| {
        let rank = item.rank.unwrap_or(1);
        (rank, alpha(item.scaling, rank))
    };
    let (rank, first) = items.first().map_or((8, 8.0), of_item);
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for item in items {
        let (own, alpha) = of_item(item);
        if own != rank {
            ranks.insert(format!("^{}", item.name), json!(own));
        }
        if alpha != first {
            alphas.insert(format!("^{}", item.name), number(alpha));
        }
    }
    let names: Vec<_> = items.iter().map(|item| &*item.name).collect();
    let is_turned = items.iter().any(|item| item.module.is_transposed == Some(true));
    let has_bias = items.iter().any(|item| item.module.tensors.contains_key(&Role::UpBias));
    let settings = json!({
        "peft_type": "LORA", "task_type": null, "inference_mode": true, "r": rank,
        "lora_alpha": number(first), "lora_dropout": 0.0, "bias": "none",
        "target_modules": names, "rank_pattern": ranks, "alpha_pattern": alphas,
        "use_rslora": false, "use_dora": is_dora, "lora_bias": has_bias,
        "fan_in_fan_out": is_turned,
    });
    match settings {
        Value::Object(settings) => Ok(settings),
        _ => Ok(Map::new()),
    }
}

/// Returns settings of mlx-lm, which has one rank and one factor.
fn mlx(items: &[&Item<'_>], is_dora: bool) -> Result<Map<String, Value>> {
    let of_item = |item: &&Item<'_>| (item.rank.unwrap_or(1), item.scaling);
    let (rank, scale) = items.first().map_or((8, 1.0), of_item);
    if items.iter().any(|item| of_item(item) != (rank, scale)) {
        let found = "modules of different ranks or factors".to_owned();
        return Err(cannot(AdapterFormat::Mlx, found).into());
    }
    let keys: BTreeSet<_> = items.iter().map(|item| in_layer(&item.name)).collect();
    let mut settings = Map::new();
    settings.insert("fine_tune_type".into(), json!(if is_dora { "dora" } else { "lora" }));
    // All layers.
    settings.insert("num_layers".into(), json!(-1));
    let lora = json!({ "rank": rank, "scale": scale, "dropout": 0.0, "keys": keys });
    settings.insert("lora_parameters".into(), lora);
    Ok(settings)
}

/// Returns a whole number without a point, as PEFT writes it.
fn number(alpha: f64) -> Value {
    let is_whole = alpha.fract() == 0.0 && alpha.abs() < 1e15;
    if is_whole { json!(alpha as i64) } else { json!(alpha) }
}
