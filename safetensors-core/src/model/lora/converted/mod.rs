//! [`ConvertedAdapter`]: an adapter in the format of another trainer.

mod experts;
mod formats;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use experts::experts;
pub use formats::AdapterFormat;
use formats::{flattened, model_of};
use settings::settings;

use super::Adapter;
use super::config::wrong;
use super::kinds::{DORA_SCALE, Kind, Role};
use super::names::Names;
use super::parts::{DIFFUSERS, Module, PEFT};
use super::source::{Source, at, located};
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::format::error::{AdapterProblem, Result};
use crate::format::tensor::TensorBuf;
use crate::model::rewrite::Rewrite;

/// Modules with transposed matrices in PEFT and mlx-lm.
const EMBEDDINGS: &[&str] = &["embed_tokens", "wte", "word_embeddings", "embed_in"];

/// An adapter in the format of another trainer, see [`Checkpoint::adapter_as`].
#[derive(Debug)]
pub struct ConvertedAdapter {
    format: AdapterFormat,
    tensors: Source,
    names: BTreeSet<String>,
    /// The tensors with α of kohya.
    alphas: Vec<(String, TensorBuf)>,
    /// The settings, as JSON.
    settings: Option<String>,
}

/// A pair of matrices, or another change, under the name that it gets.
struct Item<'a> {
    module: &'a Module,
    model: Option<&'static str>,
    name: String,
    tensors: Vec<(Role, Arranged)>,
    rank: Option<usize>,
    scaling: f64,
}

impl<S: ReadAt + 'static> Checkpoint<S> {
    /// Converts a LoRA adapter to the format of another trainer. Values stay bit by bit; transposed
    /// matrices and the parts of stacked experts are read when they are written. A merge of the
    /// result is the same.
    ///
    /// Names in kohya's files have `_` instead of `.`. Another format needs `base`, the model of
    /// the adapter, to tell them apart. Stacked experts (`target_parameters`) become one module for
    /// each expert, as vLLM reads them. `base` has the `config.json` that says their names.
    ///
    /// LoHa, LoKr and differences are for kohya's format, other complete tensors and DoRA for PEFT
    /// and mlx-lm; diffusers also has DoRA, and `modules_to_save` are for PEFT alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`](crate::ErrorKind::Adapter) for a part that the format cannot store,
    /// and as for [`Adapter::new`]. [`ErrorKind::Experts`](crate::ErrorKind::Experts) for an
    /// architecture that is not known.
    pub fn adapter_as<B: ReadAt>(
        self,
        format: AdapterFormat,
        base: Option<&Checkpoint<B>>,
    ) -> Result<ConvertedAdapter> {
        let adapter = Adapter::new(self)?;
        let items = items(&adapter, format, base)?;
        for item in &items {
            check(item, format, &adapter.source)?;
        }
        let settings = settings(&adapter, &items, format)?;
        let mut tensors = whole(&adapter, &items, format)?;
        let mut alphas = Vec::new();
        let mut models = items.iter().filter_map(|item| item.model);
        let is_only = !models.any(|model| model.starts_with("text_encoder_"));
        for item in items {
            let name = match (format, item.model) {
                (AdapterFormat::Kohya, _) if item.module.is_flattened => item.name,
                (AdapterFormat::Kohya, model) => flattened(model, &item.name, is_only),
                (AdapterFormat::Diffusers, Some(model)) => format!("{model}.{}", item.name),
                (AdapterFormat::Peft, _) => format!("{PEFT}{}", item.name),
                _ => item.name,
            };
            if let (AdapterFormat::Kohya, Some(rank)) = (format, item.rank) {
                alphas.push((format!("{name}.alpha"), kohya_alpha(item.scaling, rank)?));
            }
            for (role, tensor) in item.tensors {
                let kind = item.module.kind;
                let Some(end) = format.end(is_embedding(item.module), kind, role) else { continue };
                let is_turned = kind.is_turned(role) != end.1.is_turned(role);
                let tensor = if is_turned { tensor.transposed() } else { tensor };
                tensors.push((format!("{name}{}", end.0), tensor));
            }
        }
        let names = tensors.iter().map(|(name, _)| name.clone()).collect();
        let source = Arc::into_inner(adapter.source).ok_or_else(|| wrong("it is in use"))?;
        let tensors = source.arranged(tensors)?.into_boxed();
        Ok(ConvertedAdapter { format, tensors, names, alphas, settings })
    }
}

impl ConvertedAdapter {
    /// Returns the file to write.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`](crate::ErrorKind::DuplicateTensor) for two modules with one
    /// name.
    pub fn rewrite(&self) -> Result<Rewrite<'_, Box<dyn ReadAt>>> {
        let mut rewrite =
            Rewrite::from_checkpoint(&self.tensors).select(|name, _| self.names.contains(name));
        let metadata = rewrite.metadata_mut();
        metadata.remove(DIFFUSERS);
        metadata.insert("format".into(), "pt".into());
        if let Some(settings) = self.settings.clone().filter(|_| !self.format.has_settings()) {
            metadata.insert(DIFFUSERS.into(), settings);
        }
        for (name, alpha) in &self.alphas {
            rewrite = rewrite.add(name, alpha)?;
        }
        Ok(rewrite)
    }

    /// Returns the text of `adapter_config.json`. `None` for a format without this file.
    pub fn settings(&self) -> Option<&str> {
        self.settings.as_deref().filter(|_| self.format.has_settings())
    }
}

/// Returns all modules under the names that they get.
fn items<'a, B: ReadAt>(
    adapter: &'a Adapter,
    format: AdapterFormat,
    base: Option<&Checkpoint<B>>,
) -> Result<Vec<Item<'a>>> {
    let is_kohya = format == AdapterFormat::Kohya;
    let names = match base {
        Some(base) if !is_kohya => names_in(adapter, base)?,
        _ => BTreeMap::new(),
    };
    let mut items = Vec::new();
    for module in &adapter.parts.modules {
        let Some(first) = module.changes.first() else { continue };
        if module.has_experts {
            items.extend(experts(adapter, module, format, base)?);
            continue;
        }
        let known = names.get(&(&*module.group, &*module.name));
        let (model, name) = match (module.is_flattened, known) {
            (true, _) if is_kohya => (None, format!("{}{}", module.group, module.name)),
            (true, None) => {
                let why = "without the base, which shows where `_` is `.`";
                let problem = cannot(format, format!("module {:?}, {why}", module.name));
                return Err(at(&adapter.source, first.position(), problem));
            }
            (_, known) => {
                let (model, name) = model_of(&module.group, known.unwrap_or(&module.name));
                (model, name.to_owned())
            }
        };
        let weight = module.changes.iter().find(|change| !change.is_bias());
        let tensors = module.tensors.iter().filter(|(role, _)| **role != Role::Alpha);
        let tensors = tensors.filter_map(|(role, position)| {
            Some((*role, Arranged::tensor(adapter.source.tensor_at(*position)?.name())))
        });
        items.push(Item {
            module,
            model,
            name,
            tensors: tensors.collect(),
            rank: weight.and_then(|change| change.shape.rank),
            scaling: weight.map_or(1.0, |change| change.scaling),
        });
    }
    Ok(items)
}

/// Returns the names in the base of modules with `_` instead of `.`, by their groups and names.
fn names_in<'a, B: ReadAt>(
    adapter: &'a Adapter,
    base: &Checkpoint<B>,
) -> Result<BTreeMap<(&'a str, &'a str), String>> {
    let quantized = base.quantized_weights()?;
    let known = Names::new(base, &quantized);
    let mut names = BTreeMap::new();
    for (group, changes) in adapter.parts.groups() {
        if changes.iter().all(|(module, _)| !module.is_flattened) {
            continue;
        }
        let (found, _) = adapter.parts.find(&adapter.source, &known, &changes)?;
        for ((module, _), found) in changes.iter().zip(found) {
            let name = found.and_then(|found| found.names[0].rsplit_once('.'));
            names.extend(name.map(|(name, _)| ((group, &*module.name), name.to_owned())));
        }
    }
    Ok(names)
}

/// Checks that a format can store a module.
fn check(item: &Item<'_>, format: AdapterFormat, source: &Source) -> Result<()> {
    let module = item.module;
    let [is_kohya, is_mlx] = [AdapterFormat::Kohya, AdapterFormat::Mlx].map(|it| it == format);
    for (role, _) in &item.tensors {
        let tensor = module.tensors.get(role).and_then(|&position| source.tensor_at(position));
        let Some(tensor) = tensor else { continue };
        let is_scale = tensor.name().ends_with(DORA_SCALE);
        let is_matrix = tensor.shape().len() == 2 || !matches!(role, Role::Down | Role::Up);
        let found = if *role == Role::Magnitude && is_scale != is_kohya {
            "DoRA of this kind".to_owned()
        } else if format.end(is_embedding(module), module.kind, *role).is_none() {
            match module.kind.is_lora() {
                true => format!("LoRA with the tensor {:?}", tensor.name()),
                false => module.kind.to_string(),
            }
        } else if !is_matrix && (is_mlx || module.kind == Kind::Mlx) {
            "LoRA of convolutions or stacked experts".to_owned()
        } else {
            continue;
        };
        return Err(located(&tensor, cannot(format, found)));
    }
    let is_turned = module.kind.is_lora() && module.is_transposed == Some(true);
    let found = if (is_kohya || is_mlx) && is_turned {
        "LoRA of weights that are stored transposed (fan_in_fan_out)"
    } else if is_embedding(module) && (is_kohya || is_mlx != (module.kind == Kind::Mlx)) {
        // mlx-lm's factors do not show that a square is an embedding, and its DoRA is by rows.
        "LoRA of embeddings"
    } else if is_kohya && item.rank.is_none() && item.scaling != 1.0 {
        "a factor of a module without a rank"
    } else if !(item.scaling * item.rank.unwrap_or(1) as f64).is_finite() {
        "a factor that is not finite"
    } else if format == AdapterFormat::Diffusers && item.model.is_none() {
        "a module without a known model of a pipeline, such as unet or transformer"
    } else {
        return Ok(());
    };
    let position = module.changes.first().map_or(usize::MAX, |change| change.position());
    Err(at(source, position, cannot(format, format!("{found}: {:?}", module.name))))
}

/// Returns the tensors that replace tensors of the base.
fn whole(
    adapter: &Adapter,
    items: &[Item<'_>],
    format: AdapterFormat,
) -> Result<Vec<(String, Arranged)>> {
    let changed: BTreeSet<&str> = items.iter().map(|item| &*item.name).collect();
    let mut tensors = Vec::new();
    for wanted in &adapter.parts.whole {
        let Some(tensor) = adapter.source.tensor_at(wanted.position) else { continue };
        let (module, end) = wanted.name.rsplit_once('.').unwrap_or(("", &wanted.name));
        // mlx-lm has no module that the base lacks.
        let name = match (format, changed.contains(module)) {
            (AdapterFormat::Peft, true) => format!("{PEFT}{module}.base_layer.{end}"),
            (AdapterFormat::Peft, false) => format!("{PEFT}{}", wanted.name),
            (AdapterFormat::Mlx, false) if !wanted.may_be_new => wanted.name.clone(),
            _ => {
                let found = "a complete tensor, or a bias next to LoRA".to_owned();
                return Err(located(&tensor, cannot(format, found)));
            }
        };
        tensors.push((name, Arranged::tensor(tensor.name())));
    }
    Ok(tensors)
}

/// Returns the α of a factor: a whole number if one has exactly this factor.
fn alpha(scaling: f64, rank: usize) -> f64 {
    let (rank, alpha) = (rank as f64, scaling * rank as f64);
    let near = [alpha.round(), alpha, alpha.next_up(), alpha.next_down()];
    near.into_iter().find(|near| near / rank == scaling).unwrap_or(alpha)
}

/// Returns α for kohya's files. It is F32 if the factor stays the same.
fn kohya_alpha(scaling: f64, rank: usize) -> Result<TensorBuf> {
    let exact = alpha(scaling, rank);
    match f64::from(exact as f32) == exact {
        true => TensorBuf::from_vec(vec![], vec![exact as f32]),
        false => TensorBuf::from_vec(vec![], vec![exact]),
    }
}

fn is_embedding(module: &Module) -> bool {
    let last = module.name.rsplit('.').next().unwrap_or_default();
    module.kind == Kind::Embedding || module.kind == Kind::Mlx && EMBEDDINGS.contains(&last)
}

fn cannot(format: AdapterFormat, found: String) -> AdapterProblem {
    AdapterProblem::Format { found, format: format.to_string() }
}
