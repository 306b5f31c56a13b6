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
    let mut models = BTreeMap::<&str, Vec<&Item<'_>>>::new();
    for item in items {
        models.entry(item.model.unwrap_or_default()).or_default().push(item);
    }
    if format == AdapterFormat::Diffusers {
        let mut all = Map::new();
        for (model, items) in &models {
            for (key, value) in peft(items, format)?.as_object().into_iter().flatten() {
                all.insert(format!("{model}.{key}"), value.clone());
            }
        }
        return Ok(Some(Value::Object(all).to_string()));
    }
    if format.has_settings() && models.len() > 1 {
        let names: Vec<_> = models.into_keys().collect();
        return Err(cannot(format, format!("several models: {}", names.join(", "))).into());
    }
    let items: Vec<_> = items.iter().collect();
    let settings = match format {
        AdapterFormat::Mlx => mlx(&items, format)?,
        AdapterFormat::Peft => {
            let changed: BTreeSet<_> = items.iter().map(|item| &*item.name).collect();
            let names = adapter.parts.whole.iter().filter_map(|it| it.name.rsplit_once('.'));
            let modules = names.map(|(module, _)| module).filter(|it| !changed.contains(it));
            let modules: BTreeSet<_> = modules.collect();
            let mut settings = peft(&items, format)?;
            settings["modules_to_save"] = json!(modules);
            settings
        }
        _ => return Ok(None),
    };
    Ok(Some(format!("{settings:#}\n")))
}

/// Returns settings of PEFT. Patterns are whole names.
fn peft(items: &[&Item<'_>], format: AdapterFormat) -> Result<Value> {
    let of_item = |item: &&Item<'_>| {
        let rank = item.rank.unwrap_or(1);
        (rank, alpha(item.scaling, rank))
    };
    let (rank, first) = items.first().map_or((8, 8.0), of_item);
    let own = |it: &&Item<'_>| (format!("^{}", it.name), of_item(it));
    let ranks = items.iter().map(own).filter(|(_, it)| it.0 != rank);
    let ranks: Map<_, _> = ranks.map(|(name, it)| (name, json!(it.0))).collect();
    let alphas = items.iter().map(own).filter(|(_, it)| it.1 != first);
    let alphas: Map<_, _> = alphas.map(|(name, it)| (name, json!(it.1))).collect();
    let names: Vec<_> = items.iter().map(|item| &*item.name).collect();
    let is_turned = items.iter().any(|item| item.module.is_transposed == Some(true));
    let has_bias = items.iter().any(|item| item.module.tensors.contains_key(&Role::UpBias));
    Ok(json!({
        "peft_type": "LORA", "task_type": null, "inference_mode": true, "r": rank,
        "lora_alpha": first, "lora_dropout": 0.0, "bias": "none",
        "target_modules": names, "rank_pattern": ranks, "alpha_pattern": alphas,
        "use_rslora": false, "use_dora": is_dora(items, format)?, "lora_bias": has_bias,
        "fan_in_fan_out": is_turned,
    }))
}

/// Returns settings of mlx-lm, which has one rank and one factor.
fn mlx(items: &[&Item<'_>], format: AdapterFormat) -> Result<Value> {
    let of_item = |item: &&Item<'_>| (item.rank.unwrap_or(1), item.scaling);
    let (rank, scale) = items.first().map_or((8, 1.0), of_item);
    if items.iter().any(|item| of_item(item) != (rank, scale)) {
        let found = "modules of different ranks or factors".to_owned();
        return Err(cannot(format, found).into());
    }
    let keys: BTreeSet<_> = items.iter().map(|item| in_layer(&item.name)).collect();
    Ok(json!({
        "fine_tune_type": if is_dora(items, format)? { "dora" } else { "lora" },
        // All layers.
        "num_layers": -1,
        "lora_parameters": { "rank": rank, "scale": scale, "dropout": 0.0, "keys": keys },
    }))
}

/// Returns whether all modules of a model have DoRA.
fn is_dora(items: &[&Item<'_>], format: AdapterFormat) -> Result<bool> {
    let count = items.iter().filter(|item| item.module.magnitude().is_some()).count();
    if count != 0 && count != items.len() {
        return Err(cannot(format, "DoRA of only some modules".to_owned()).into());
    }
    Ok(count > 0)
}
