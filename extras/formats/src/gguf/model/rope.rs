//! Rotary embeddings: their base, and their scaling for longer texts.

use super::architecture::{Llama3, Settings};
use super::fields::{Fields, bad, missing};
use crate::error::Result;

/// Versions of transformers name the settings differently.
pub(super) fn read(fields: &mut Fields) -> Result<Settings> {
    let mut settings = Settings::default();
    let mut theta = fields.float("rope_theta")?;
    let mut near = fields.float("rope_local_base_freq")?;
    let mut scaling = fields.object("rope_scaling")?;
    if let Some(mut newer) = fields.object("rope_parameters")? {
        if let Some(mut sliding) = newer.object("sliding_attention")? {
            near = sliding.float("rope_theta")?.or(near);
            sliding.expect("rope_type", &["default".into()])?;
            sliding.finish()?;
            let full = newer.object("full_attention")?;
            newer.finish()?;
            newer = full.ok_or_else(|| missing("full_attention"))?;
        }
        theta = newer.float("rope_theta")?.or(theta);
        scaling = Some(newer);
    }
    if let Some(theta) = theta {
        settings.metadata.push(("rope.freq_base", (theta as f32).into()));
    }
    if let Some(near) = near {
        settings.metadata.push(("rope.freq_base_swa", (near as f32).into()));
    }
    fields.expect("partial_rotary_factor", &[1.0.into(), 1.into()])?;
    if let Some(scaling) = scaling {
        read_scaling(scaling, theta.unwrap_or(10_000.0), &mut settings)?;
    }
    Ok(settings)
}

fn read_scaling(mut fields: Fields, theta: f64, settings: &mut Settings) -> Result<()> {
    let older = fields.text("type")?;
    let kind = fields.text("rope_type")?.or(older);
    let kind = kind.as_deref().unwrap_or("default");
    let mut need = |name| fields.float(name)?.ok_or_else(|| missing(name));
    match kind {
        "default" => {}
        "linear" => {
            settings.metadata.push(("rope.scaling.type", "linear".into()));
            settings.metadata.push(("rope.scaling.factor", (need("factor")? as f32).into()));
        }
        "yarn" => {
            settings.metadata.push(("rope.scaling.type", "yarn".into()));
            settings.metadata.push(("rope.scaling.factor", (need("factor")? as f32).into()));
            let context = fields.required_size("original_max_position_embeddings")?;
            settings.metadata.push(("rope.scaling.original_context_length", context.into()));
            for (name, key) in [
                ("extrapolation_factor", "rope.scaling.yarn_ext_factor"),
                ("attention_factor", "rope.scaling.yarn_attn_factor"),
                ("beta_fast", "rope.scaling.yarn_beta_fast"),
                ("beta_slow", "rope.scaling.yarn_beta_slow"),
            ] {
                if let Some(value) = fields.float(name)? {
                    settings.metadata.push((key, (value as f32).into()));
                }
            }
        }
        "llama3" => {
            settings.llama3 = Some(Llama3 {
                theta,
                factor: need("factor")?,
                low: need("low_freq_factor")?,
                high: need("high_freq_factor")?,
                context: need("original_max_position_embeddings")?,
            });
        }
        other => {
            return Err(bad(format!(
                "rotary embeddings of type {other:?} are not known; expected default, linear, \
                 yarn or llama3"
            )));
        }
    }
    fields.finish()
}
