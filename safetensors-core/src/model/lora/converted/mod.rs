//! [`ConvertedAdapter`]: an adapter in the format of another trainer.

mod experts;
mod formats;
mod settings;

use std::collections::BTreeSet;
use std::sync::Arc;

use experts::experts;
pub use formats::AdapterFormat;
use formats::{Model, flattened, model_of};
use settings::settings;

use super::Adapter;
use super::config::wrong;
use super::fit::{Found, Names};
use super::kinds::{DORA_SCALE, Family, Kind, Role};
use super::parts::{DIFFUSERS, Module, PEFT};
use super::source::{Source, located};
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::format::error::{AdapterProblem, Error, Result};
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
    model: Option<&'static Model>,
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
        let mut models = items.iter().filter_map(|item| item.model);
        let is_only = !models.any(|model| model.name.starts_with("text_encoder_"));
        let mut tensors = whole(&adapter, &items, format)?;
        let mut alphas = Vec::new();
        for item in items {
            let name = match (format, item.model) {
                (AdapterFormat::Kohya, _) if item.module.is_flattened => item.name,
                (AdapterFormat::Kohya, model) => flattened(model, &item.name, is_only),
                (AdapterFormat::Diffusers, Some(model)) => format!("{}.{}", model.name, item.name),
                (AdapterFormat::Peft, _) => format!("{PEFT}{}", item.name),
                _ => item.name,
            };
            let alpha = item.rank.filter(|_| format == AdapterFormat::Kohya);
            alphas.extend(alpha.map(|rank| kohya_alpha(&name, item.scaling, rank)).transpose()?);
            for (role, tensor) in item.tensors {
                let end = format
                    .end(is_embedding(item.module), item.module.kind, role)
                    .unwrap_or_default();
                let is_turned = format == AdapterFormat::Mlx && role != Role::Magnitude;
                let tensor = if is_turned { tensor.transposed() } else { tensor };
                tensors.push((format!("{name}{end}"), tensor));
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
    let modules = &adapter.parts.modules;
    let is_flattened = modules.iter().any(|module| module.is_flattened);
    let named = base.filter(|_| is_flattened && format != AdapterFormat::Kohya);
    let mut named = named.map(|base| names_in(adapter, base)).transpose()?.into_iter().flatten();
    let mut items = Vec::new();
    for module in modules {
        let found = named.next().flatten().filter(|_| module.is_flattened);
        let Some(position) = module.changes.first().map(|change| change.position) else { continue };
        if module.experts.is_some() {
            items.extend(experts(adapter, module, format, base)?);
            continue;
        }
        let is_kept = module.is_flattened && format == AdapterFormat::Kohya;
        if module.is_flattened && !is_kept && found.is_none() {
            let why = match base {
                Some(_) => "which the base lacks",
                None => "without the base, which shows where `_` is `.`",
            };
            let problem = cannot(format, format!("module {:?}, {why}", module.name));
            return Err(at(&adapter.source, position, problem));
        }
        let name = found.as_deref().unwrap_or(&module.name);
        let (model, name) = if is_kept { (None, name) } else { model_of(&module.group, name) };
        let group = if is_kept { &*module.group } else { "" };
        let weight = module.changes.iter().find(|change| !change.is_bias());
        let shape = weight.map(|change| change.matrix.shape(&adapter.source)).transpose()?;
        items.push(Item {
            module,
            model,
            name: format!("{group}{name}"),
            tensors: tensors(&adapter.source, module),
            rank: shape.and_then(|shape| shape.rank),
            scaling: weight.map_or(1.0, |change| change.scaling),
        });
    }
    Ok(items)
}

/// Returns the name of each module in the base, if it is there.
fn names_in<B: ReadAt>(adapter: &Adapter, base: &Checkpoint<B>) -> Result<Vec<Option<String>>> {
    let quantized = base.quantized_weights()?;
    let names = Names::new(base, quantized.iter().map(|weight| &*weight.name));
    let found = adapter.parts.find(&adapter.source, &names)?;
    let mut found = found.into_iter().skip(adapter.parts.whole.len());
    let mut all = Vec::new();
    for module in &adapter.parts.modules {
        let mut of_module = found.by_ref().take(module.changes.len());
        let first = of_module.next();
        of_module.for_each(drop);
        all.push(match first {
            Some(Found::At(names, _)) => names[0].rsplit_once('.').map(|it| it.0.to_owned()),
            _ => None,
        });
    }
    Ok(all)
}

/// Returns the tensors of a module, with matrices as PEFT stores them.
fn tensors(source: &Source, module: &Module) -> Vec<(Role, Arranged)> {
    let mut tensors = Vec::new();
    for (&role, &position) in &module.tensors {
        let Some(tensor) = source.tensor_at(position).filter(|_| role != Role::Alpha) else {
            continue;
        };
        let tensor = Arranged::tensor(tensor.name());
        let is_turned = module.family == Family::Mlx && role != Role::Magnitude;
        tensors.push((role, if is_turned { tensor.transposed() } else { tensor }));
    }
    tensors
}

/// Checks that a format can store a module.
fn check(item: &Item<'_>, format: AdapterFormat, source: &Source) -> Result<()> {
    let module = item.module;
    let is_flat = matches!(format, AdapterFormat::Kohya | AdapterFormat::Mlx);
    let is_kohya = format == AdapterFormat::Kohya;
    let is_mlx = format == AdapterFormat::Mlx;
    for (role, _) in &item.tensors {
        let Some(tensor) = module.tensors.get(role).and_then(|&it| source.tensor_at(it)) else {
            continue;
        };
        let is_scale = tensor.name().ends_with(DORA_SCALE);
        let found = match (role, module.kind) {
            (Role::Magnitude, _) if is_scale != is_kohya => "DoRA of this kind".to_owned(),
            (_, kind) if format.end(is_embedding(module), kind, *role).is_none() => match kind {
                Kind::Lora => format!("LoRA with the tensor {:?}", tensor.name()),
                kind => kind.to_string(),
            },
            (Role::Down | Role::Up, _)
                if tensor.shape().len() != 2 && (is_mlx || module.family == Family::Mlx) =>
            {
                "LoRA of convolutions or stacked experts".to_owned()
            }
            _ => continue,
        };
        return Err(located(&tensor, cannot(format, found)));
    }
    let found = if is_flat && module.kind == Kind::Lora && module.is_transposed == Some(true) {
        "LoRA of weights that are stored transposed (fan_in_fan_out)"
    } else if is_embedding(module) && (is_kohya || is_mlx != (module.family == Family::Mlx)) {
        // mlx-lm's factors do not show that a square is an embedding, and its DoRA is by rows.
        "LoRA of embeddings"
    } else if is_kohya && item.rank.is_none() && item.scaling != 1.0 {
        "a factor of a module without a rank"
    } else if format == AdapterFormat::Diffusers && item.model.is_none() {
        "a module without a known model of a pipeline, such as unet or transformer"
    } else {
        return Ok(());
    };
    let position = module.changes.first().map_or(usize::MAX, |change| change.position);
    let found = format!("{found}: {:?}", module.name);
    Err(at(source, position, cannot(format, found)))
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
        let module = wanted.name.rsplit_once('.').map_or("", |(module, _)| module);
        // mlx-lm has no module that the base lacks.
        let is_new = format == AdapterFormat::Mlx && wanted.may_be_new;
        if !format.has_settings() || is_new || changed.contains(module) {
            let found = "a complete tensor, or a bias next to LoRA".to_owned();
            return Err(located(&tensor, cannot(format, found)));
        }
        let prefix = if format == AdapterFormat::Peft { PEFT } else { "" };
        tensors.push((format!("{prefix}{}", wanted.name), Arranged::tensor(tensor.name())));
    }
    Ok(tensors)
}

/// Returns the α of a factor: a whole number if one has exactly this factor.
fn alpha(scaling: f64, rank: usize) -> f64 {
    let (rank, alpha) = (rank as f64, scaling * rank as f64);
    let near = [alpha.round(), alpha, alpha.next_up(), alpha.next_down()];
    near.into_iter().find(|near| near / rank == scaling).unwrap_or(alpha)
}

/// Returns the tensor with α of a module. It is F32 if the factor stays the same.
fn kohya_alpha(module: &str, scaling: f64, rank: usize) -> Result<(String, TensorBuf)> {
    let exact = alpha(scaling, rank);
    let is_exact = f64::from(exact as f32) == exact;
    let tensor = match is_exact {
        true => TensorBuf::from_vec(vec![], vec![exact as f32])?,
        false => TensorBuf::from_vec(vec![], vec![exact])?,
    };
    Ok((format!("{module}.alpha"), tensor))
}

fn is_embedding(module: &Module) -> bool {
    let last = module.name.rsplit('.').next().unwrap_or_default();
    module.is_embedding() || module.family == Family::Mlx && EMBEDDINGS.contains(&last)
}

fn cannot(format: AdapterFormat, found: String) -> AdapterProblem {
    AdapterProblem::Format { found, format: format.to_string() }
}

/// Returns an error about the tensor at a position of the adapter.
fn at(source: &Source, position: usize, problem: AdapterProblem) -> Error {
    match source.tensor_at(position) {
        Some(tensor) => located(&tensor, problem),
        None => problem.into(),
    }
}
