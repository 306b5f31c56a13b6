//! DeepSpeed with ZeRO: all parameters in a row, group by group, divided among ranks.
//!
//! With stages 1 and 2, a rank has a range of each group; with stage 3, of each parameter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use safetensors_core::Dtype;
use safetensors_core::framework::in_parallel;

use super::frozen::add_frozen;
use super::row::{Piece, Row};
use super::states::{self, Flat, ModelState, Partition, Shapes, StateFile, count};
use super::{File, Folder, add, bad, item, settings};
use crate::budget::{Budget, ENTRY};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor_file::{Directory, Region, WholeTensor};

/// The directory of another format of DeepSpeed.
const UNIVERSAL: &str = "zero";

const STATE: &str = "optimizer.state";

pub(super) fn examine(folder: &Folder<'_>) -> Result<Directory> {
    let names = Names::find(folder)?;
    let mut files = folder.open_all(&names.models)?;
    let first = files.len();
    files.extend(folder.open_all(&names.optimizers)?);
    let (models, optimizers) = files.split_at(first);
    let options = folder.options;
    let budget = &folder.budget;
    let mut models = read_all(models, budget, |archive| states::model(archive, options))?;
    let partitions = read_all(optimizers, budget, |archive| states::partition(archive, options))?;
    let mut directory = Directory::of_archives(files);
    let located = |error: Error| error.in_path(&folder.path);
    check_models(&models, &directory).map_err(located)?;
    let Some(groups) = models[0].groups.take() else {
        if !partitions.is_empty() {
            return Err(located(bad("the file of the model has no param_shapes")));
        }
        // Without ZeRO, the model is whole.
        let model = models.swap_remove(0);
        add(&mut directory, model.module, 0);
        return Ok(directory);
    };
    check_partitions(&partitions, &models, &directory, first).map_err(located)?;
    let plan = JoinPlan { groups, partitions: &partitions, first, budget };
    let parameters = plan.parameters().map_err(located)?;
    directory.tensors.extend(parameters);
    if let Some(found) = &partitions[0].settings {
        let names = plan.groups.iter().flatten().map(|(name, _)| 2 * name.len() + ENTRY);
        budget.keep(names.sum())?;
        match settings::of_groups(found, &plan.groups) {
            Some(entry) => _ = directory.metadata.insert(settings::OPTIMIZER.into(), entry),
            None => directory.notes.push("skipped: the settings of the optimizer".into()),
        }
    }
    plan.add_model(models, &mut directory).map_err(located)?;
    Ok(directory)
}

struct Names<'a> {
    models: Vec<&'a String>,
    optimizers: Vec<&'a String>,
}

impl<'a> Names<'a> {
    fn find(folder: &'a Folder<'_>) -> Result<Self> {
        let mut models = BTreeMap::new();
        let mut optimizers = BTreeMap::new();
        if folder.directories.iter().any(|name| name == UNIVERSAL) {
            let problem = "it is DeepSpeed's universal format, a file for each parameter".into();
            return Err(folder.wrong(ErrorKind::NotRead { problem }));
        }
        for name in folder.files.iter().filter(|name| StateFile::is_name(name)) {
            let refuse = |problem: String| folder.wrong(ErrorKind::NotRead { problem });
            let quoted = crate::error::Quoted(name);
            let Some(file) = StateFile::parse(name) else {
                return Err(refuse(format!(
                    "{quoted} has experts or a stage of a pipeline; DeepSpeed's ds_to_universal.py \
                     reads such checkpoints"
                )));
            };
            if file.model_rank != 0 {
                return Err(refuse(format!("{quoted} has a part of a model that ranks divide")));
            }
            let files = if file.is_optimizer { &mut optimizers } else { &mut models };
            if files.insert(file.rank.unwrap_or(0), name).is_some() {
                return Err(
                    bad(format!("two files are of the rank of {quoted}")).in_path(&folder.path)
                );
            }
        }
        let in_order = |files: BTreeMap<usize, &'a String>, end: &str| match (0..)
            .zip(files.keys())
            .find(|(expected, rank)| expected != *rank)
        {
            Some((rank, _)) => Err(folder.missing(file_of(rank, end))),
            None => Ok(files.into_values().collect::<Vec<_>>()),
        };
        let models = in_order(models, "model")?;
        let optimizers = in_order(optimizers, "optim")?;
        if models.is_empty() {
            return Err(folder.missing("mp_rank_00_model_states.pt"));
        }
        Ok(Self { models, optimizers })
    }
}

fn file_of(rank: usize, what: &str) -> String {
    format!("zero_pp_rank_{rank}_mp_rank_00_{what}_states.pt")
}

fn read_all<R: Send>(
    files: &[File],
    budget: &Budget,
    read: impl Fn(&item::Archive) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    in_parallel(files.iter(), 0, |(path, input), _: &mut ()| {
        let archive = item::open(Arc::clone(&input.source), path, budget)?;
        read(&archive).map_err(|error| error.in_path(path))
    })
}

/// Fails for several steps, or an incomplete model.
fn check_models(models: &[ModelState], directory: &Directory) -> Result<()> {
    for (rank, state) in models.iter().enumerate() {
        let problem = match (state.step, models[0].step) {
            (here, there) if here != there => {
                let step = |step: Option<i64>| step.map_or("none".into(), |step| step.to_string());
                format!("its step is {}, but rank 0's is {}", step(here), step(there))
            }
            _ if state.model_ranks != 1 => {
                let problem = format!("{} ranks have each a part of the model", state.model_ranks);
                return Err(ErrorKind::NotRead { problem }.into());
            }
            _ => continue,
        };
        return Err(bad(problem).in_path(&directory.files[rank].0));
    }
    Ok(())
}

/// They must be from all ranks of a step. `first`: the number of the first file.
fn check_partitions(
    partitions: &[Partition],
    models: &[ModelState],
    directory: &Directory,
    first: usize,
) -> Result<()> {
    let missing =
        |rank: usize, of: &str| Err(ErrorKind::MissingFile { file: file_of(rank, of) }.into());
    let Some(Partition { stage, count, step, .. }) = partitions.first() else {
        return missing(0, "optim");
    };
    if partitions.len() < *count {
        return missing(partitions.len(), "optim");
    }
    if *stage == 3 && models.len() < *count {
        return missing(models.len(), "model");
    }
    for (rank, other) in partitions.iter().enumerate() {
        let problem = if (other.stage, other.count) != (*stage, partitions.len()) {
            format!(
                "it is of stage {} of ZeRO with {} ranks, but there are files of {} ranks, and \
                 rank 0's is of stage {stage}",
                other.stage,
                other.count,
                partitions.len()
            )
        } else if other.step != *step {
            "its step differs from rank 0's".into()
        } else {
            continue;
        };
        return Err(bad(problem).in_path(&directory.files[first + rank].0));
    }
    Ok(())
}

struct JoinPlan<'a> {
    groups: Vec<Shapes>,
    partitions: &'a [Partition],
    first: usize,
    budget: &'a Budget,
}

impl JoinPlan<'_> {
    fn parameters(&self) -> Result<Vec<WholeTensor>> {
        let mut rows =
            vec![(None, self.partitions.iter().map(|it| &it.groups).collect::<Vec<_>>())];
        for (number, (name, _)) in self.partitions[0].moments.iter().enumerate() {
            let of_rank = |partition: &'_ Partition| partition.moments.get(number).cloned();
            let ranks = self.partitions.iter().map(of_rank).collect::<Option<Vec<_>>>();
            let same = ranks.filter(|ranks| ranks.iter().all(|(other, _)| other == name));
            if same.is_none() {
                return Err(bad(format!("not every rank has {name} of the optimizer")));
            }
            let groups = self.partitions.iter().map(|it| &it.moments[number].1).collect();
            rows.push((Some(name), groups));
        }
        let mut tensors = Vec::new();
        for (moment, ranks) in rows {
            let found = match self.partitions[0].stage {
                3 => self.of_ranges(&ranks)?,
                _ => self.of_groups(&ranks, moment.is_some())?,
            };
            for mut tensor in found {
                if let Some(moment) = moment {
                    self.budget.keep(STATE.len() + tensor.name.len() + moment.len())?;
                    tensor.name = format!("{STATE}.{}.{moment}", tensor.name);
                }
                tensors.push(tensor);
            }
        }
        Ok(tensors)
    }

    /// Stages 1 and 2: cuts each group into parameters. With `is_padded`, a rank's range may have
    /// extra numbers.
    fn of_groups(&self, ranks: &[&Vec<Flat>], is_padded: bool) -> Result<Vec<WholeTensor>> {
        let mut tensors = Vec::new();
        if ranks.iter().any(|groups| groups.len() != self.groups.len()) {
            return Err(bad("a rank has another number of groups than the model"));
        }
        for (number, shapes) in self.groups.iter().enumerate() {
            let ranges = ranks.iter().zip(self.partitions).enumerate();
            let row = Row::new(ranges.map(|(rank, (groups, partition))| {
                let (Flat { start, len }, of_group) = (groups[number], partition.groups[number]);
                let len = if is_padded { len.min(of_group.len) } else { len };
                (self.first + rank, Flat { start, len })
            }));
            let paddings = self.partitions[0]
                .paddings
                .as_ref()
                .map(|all| all.get(number).filter(|paddings| paddings.len() == shapes.len()));
            let paddings = match paddings {
                Some(None) => return Err(bad("its paddings do not match its parameters")),
                paddings => paddings.flatten(),
            };
            let mut at = 0_usize;
            for (position, (name, shape)) in shapes.iter().enumerate() {
                let len = count(shape)?;
                let pieces =
                    row.cut(at, len, self.budget).map_err(|error| error.in_tensor(name))?;
                tensors.push(self.whole(name, shape, pieces)?);
                let padding = paddings.map_or(0, |paddings| paddings[position]);
                at = at.saturating_add(len).saturating_add(padding);
            }
            self.check_length(at, row.len())?;
        }
        Ok(tensors)
    }

    /// Rounds both up, like DeepSpeed.
    fn check_length(&self, expected: usize, found: usize) -> Result<()> {
        let unit = 2 * self.partitions.len();
        if expected.div_ceil(unit) == found.div_ceil(unit) {
            return Ok(());
        }
        Err(bad(format!(
            "the ranks have {found} numbers of a group whose parameters have {expected}; they are \
             not of one save"
        )))
    }

    /// Stage 3: joins the equally long ranges of each parameter.
    fn of_ranges(&self, ranks: &[&Vec<Flat>]) -> Result<Vec<WholeTensor>> {
        let rows: Vec<Row> = ranks
            .iter()
            .enumerate()
            .map(|(rank, groups)| Row::new(groups.iter().map(|&flat| (self.first + rank, flat))))
            .collect();
        let mut tensors = Vec::new();
        let mut at = 0_usize;
        for (name, shape) in self.groups.iter().flatten() {
            self.budget.work(rows.len())?;
            let len = count(shape)?;
            let range = len.div_ceil(rows.len());
            let mut pieces = Vec::new();
            for (rank, row) in rows.iter().enumerate() {
                let first = range.saturating_mul(rank).min(len);
                let of_rank = range.min(len - first);
                let cut = row.cut(at, of_rank, self.budget);
                let cut = cut.map_err(|error| error.in_tensor(name))?;
                pieces.extend(cut.into_iter().map(|(file, region, data)| {
                    let Region::Flat { first: inside, len } = region else {
                        return (file, region, data);
                    };
                    (file, Region::Flat { first: first + inside, len }, data)
                }));
            }
            tensors.push(self.whole(name, shape, pieces)?);
            at = at.saturating_add(range);
        }
        for row in &rows {
            let found = row.len();
            if found != at {
                return Err(bad(format!(
                    "a rank has {found} numbers of parameters of which it should have {at}; the \
                     ranks are not of one save"
                )));
            }
        }
        Ok(tensors)
    }

    fn whole(&self, name: &str, shape: &[usize], pieces: Vec<Piece>) -> Result<WholeTensor> {
        self.budget.keep(name.len() + size_of::<WholeTensor>())?;
        self.budget.keep_all::<usize>(shape.len())?;
        let name = name.to_owned();
        let shape = shape.to_vec();
        Ok(WholeTensor { name, dtype: Dtype::F32, shape, stored: None, pieces })
    }

    fn add_model(&self, mut models: Vec<ModelState>, directory: &mut Directory) -> Result<()> {
        let is_divided = self.partitions[0].stage == 3;
        let names = directory.tensors.iter().map(|tensor| &tensor.name);
        self.budget.keep(names.clone().map(|name| name.len() + ENTRY).sum())?;
        let mut known: HashSet<String> = names.cloned().collect();
        models.truncate(if is_divided { models.len() } else { 1 });
        let fragments: Vec<_> =
            models.iter_mut().map(|state| std::mem::take(&mut state.fragments)).collect();
        let Some(first) = models.into_iter().next() else { return Ok(()) };
        // Of stage 3, the parameters of the module are empty.
        let whole = first.module.tensors.iter().filter(|_| !is_divided).map(|tensor| &*tensor.name);
        let elsewhere = whole.chain(first.shared.iter().map(|(alias, _)| &**alias)).collect();
        // DeepSpeed's own tool omits frozen parameters of stage 1, and widens buffers. The file has
        // both, so both are read, in their dtypes.
        add_frozen(&first.frozen, fragments, &elsewhere, directory)?;
        known.extend(directory.tensors.iter().map(|tensor| tensor.name.clone()));
        known.extend(directory.aliases.iter().map(|(alias, _)| alias.clone()));
        let shared: HashMap<_, _> = first.shared.into_iter().collect();
        let buffers: HashSet<_> = first.buffers.into_iter().collect();
        let takes = |name: &str| {
            !known.contains(name)
                && !shared.contains_key(name)
                && (!is_divided || buffers.contains(name))
        };
        let mut module = first.module;
        module.aliases.retain(|(alias, kept)| takes(alias) && takes(kept));
        module.tensors.retain(|tensor| takes(&tensor.name));
        add(directory, module, 0);
        let aliased: HashSet<_> = directory.aliases.iter().map(|(alias, _)| &**alias).collect();
        let names: HashSet<_> = directory.tensors.iter().map(|tensor| &*tensor.name).collect();
        let shared = shared.iter().filter(|(alias, kept)| {
            names.contains(&***kept) && !names.contains(&***alias) && !aliased.contains(&***alias)
        });
        let mut aliases: Vec<_> = shared.map(|(a, b)| (a.to_string(), Arc::clone(b))).collect();
        aliases.sort_unstable();
        directory.aliases.extend(aliases);
        Ok(())
    }
}
