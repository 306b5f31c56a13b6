//! Parameters that are targets of an adapter, such as the stacked weights of experts.

use super::config::{Config, wrong};
use crate::format::error::Result;

/// What PEFT adds to the name of a module for each further parameter of it.
const WRAPPED: &str = ".base_layer";

/// Parameters of a module, in the order in which transformers' modules have them.
const ORDER: &[&str] = &["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"];

/// Returns the module and the parameter that a name of an adapter means. `None` for the weight of
/// the module. `is_known` finds other names of the adapter.
///
/// PEFT wraps a module once for each of its parameters, the first of them innermost.
pub(super) fn parameter<'a>(
    key: &'a str,
    config: &'a Config,
    is_known: impl Fn(&str) -> bool,
) -> Result<(&'a str, Option<&'a str>)> {
    let module = key.trim_end_matches(WRAPPED);
    let level = (key.len() - module.len()) / WRAPPED.len();
    let mut parameters = config.parameters_of(module);
    if parameters.is_empty() && level == 0 {
        return Ok((key, None));
    }
    let order = |parameter: &&str| ORDER.iter().position(|known| known == parameter);
    let is_ordered = parameters.len() == 1 || parameters.iter().all(|it| order(it).is_some());
    let levels = (0..=ORDER.len())
        .take_while(|&level| is_known(&format!("{module}{}", WRAPPED.repeat(level))))
        .count();
    if parameters.len() != levels || level >= levels || !is_ordered {
        return Err(wrong(format_args!(
            "target_parameters has {parameters:?} for module {module:?}, and the file has {levels} \
             pairs of matrices for it"
        )));
    }
    parameters.sort_by_key(order);
    Ok((module, Some(parameters[levels - 1 - level])))
}
