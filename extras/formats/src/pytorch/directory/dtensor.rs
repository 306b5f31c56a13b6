//! `DTensor`s of a mesh with one dimension: a file of each rank, `model_world_size_2_rank_0.pt`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use safetensors_core::framework::in_parallel;

use super::{Folder, MOST_FIELDS, add, bad, item, left_out, number};
use crate::Options;
use crate::budget::ENTRY;
use crate::error::{Error, ErrorKind, Quoted, Result};
use crate::pytorch::values::{Node, Value, Values};
use crate::pytorch::{build, names, shape_of};
use crate::tensor_file::{Builder, Directory, Region, Tensor, WholeTensor};

/// Read if each rank has several files, such as one for the optimizer.
const MODEL: &str = "model";

fn rank_of(name: &str) -> Option<(&str, usize, usize)> {
    let (what, rest) = name.strip_suffix(".pt")?.rsplit_once("_world_size_")?;
    let (ranks, rank) = rest.split_once("_rank_")?;
    Some((what, number(ranks)?, number(rank)?))
}

pub(super) fn examine(folder: &Folder<'_>) -> Result<Directory> {
    let names = names_of(folder)?;
    let others = folder.files.iter().filter(|it| rank_of(it).is_some() && !names.contains(it));
    let others: Vec<_> = others.map(String::as_str).collect();
    let files = folder.open_all(&names)?;
    let mut ranks = in_parallel(files.iter(), 0, |(path, input), _: &mut ()| {
        let archive = item::open(Arc::clone(&input.source), path, &folder.budget)?;
        parts(archive, folder.options).map_err(|error| error.in_path(path))
    })?;
    let mut directory = Directory::of_archives(files);
    directory.notes.extend(left_out(&others, ["file", "files"]));
    let first = ranks.first_mut().map(|first| std::mem::take(&mut first.names)).unwrap_or_default();
    for name in first {
        let joined = join(&name, &mut ranks)
            .map_err(|(rank, error)| error.in_tensor(&name).in_path(&directory.files[rank].0))?;
        directory.tensors.push(joined);
    }
    for (rank, parts) in ranks.iter().enumerate() {
        if let Some(name) = parts.tensors.keys().min() {
            let problem = "rank 0 does not have it; the ranks have not saved the same model";
            return Err(bad(problem).in_tensor(name).in_path(&directory.files[rank].0));
        }
    }
    if let Some(first) = ranks.into_iter().next() {
        add(&mut directory, first.others, 0);
    }
    Ok(directory)
}

fn names_of<'a>(folder: &'a Folder<'_>) -> Result<Vec<&'a String>> {
    let known = || folder.files.iter().filter_map(|name| Some((name, rank_of(name)?)));
    let is_model = known().any(|(_, (what, ..))| what == MODEL);
    let first = known().map(|(_, (what, ..))| what).next();
    let what = if is_model { Some(MODEL) } else { first };
    let of_ranks: BTreeMap<_, _> = known()
        .filter(|(_, (of, ..))| Some(*of) == what)
        .map(|(name, (_, ranks, rank))| ((ranks, rank), name))
        .collect();
    let sizes: BTreeSet<_> = of_ranks.keys().map(|(ranks, _)| *ranks).collect();
    let Some(&ranks) = sizes.first() else {
        return Err(folder.wrong(ErrorKind::UnknownFormat { found: None }));
    };
    if sizes.len() > 1 {
        let problem =
            format!("its files come from jobs with {sizes:?} ranks; keep one job's files");
        return Err(folder.wrong(ErrorKind::BadDirectory { problem }));
    }
    for (expected, (_, rank)) in (0..ranks).zip(of_ranks.keys().chain([&(ranks, ranks)])) {
        if expected != *rank {
            let what = what.unwrap_or(MODEL);
            return Err(folder.missing(format!("{what}_world_size_{ranks}_rank_{expected}.pt")));
        }
    }
    Ok(of_ranks.into_values().collect())
}

struct Parts {
    names: Vec<String>,
    tensors: HashMap<String, (Tensor, Division)>,
    others: Builder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Division {
    /// Each rank has all of it.
    Whole,
    /// `shape`: of the complete tensor.
    Along { dim: usize, shape: Vec<usize> },
}

fn parts(mut archive: item::Archive, options: &Options) -> Result<Parts> {
    let divided = divided(&mut archive.values)?;
    let values = &archive.values;
    let found = names::collect(values, archive.object, "", "")?;
    values.budget.keep(found.tensors.iter().map(|(name, _)| name.len() + ENTRY).sum())?;
    let positions: HashMap<_, _> = found.tensors.iter().cloned().collect();
    let builder = build(values, found, options, &mut |storage| archive.place(storage))?;
    let mut others = item::at(builder, 0)?;
    let mut names = Vec::new();
    let mut tensors = HashMap::new();
    for tensor in std::mem::take(&mut others.tensors) {
        let position = positions.get(&tensor.name);
        let division = match position.and_then(|it| Some((*it, divided.get(it)?))) {
            None | Some((_, Ok(Division::Whole))) => Division::Whole,
            Some((position, Ok(Division::Along { dim, shape }))) => {
                let kind = values.tensors[position as usize].kind;
                Division::Along { dim: *dim, shape: shape_of(kind, shape) }
            }
            Some((_, Err(problem))) => {
                let error = Error::from(ErrorKind::NotRead { problem: problem.clone() });
                return Err(error.in_tensor(&tensor.name));
            }
        };
        values.budget.keep(2 * (tensor.name.len() + size_of::<(Tensor, Division)>()))?;
        names.push(tensor.name.clone());
        tensors.insert(tensor.name.clone(), (tensor, division));
    }
    Ok(Parts { names, tensors, others })
}

/// Replaces each `DTensor` by the rank's part. Returns how each is divided, or why it cannot be
/// joined, by the part's position among the tensors.
fn divided(values: &mut Values) -> Result<HashMap<u32, Result<Division, String>>> {
    let mut divided = HashMap::new();
    for node in values.nodes() {
        let Some((position, division)) = division(values, node) else { continue };
        let len = match &division {
            Ok(Division::Whole) => 0,
            Ok(Division::Along { shape, .. }) => 4 * size_of_val(&**shape),
            Err(problem) => problem.len(),
        };
        values.budget.keep(len + ENTRY)?;
        divided.insert(position, division);
        if let Some(node) = values.node_mut(node) {
            *node = Node::Tensor(position);
        }
    }
    Ok(divided)
}

fn division(values: &Values, value: Value) -> Option<(u32, Result<Division, String>)> {
    let Some(Node::Object { class, parts }) = values.node(value) else { return None };
    let &[function, subclass, arguments, state] = parts.as_slice() else { return None };
    let is_divided = values.class(*class)?.1 == "_rebuild_from_type_v2"
        && values.class(function)?.1 == "_rebuild_wrapper_subclass"
        && values.class(subclass)?.1 == "DTensor";
    // Attributes without a dictionary come second in a pair.
    let attributes = match values.items(state) {
        Some(&[first, second]) => [first, second],
        _ => [state, Value::None],
    };
    let get = |name: &str| attributes.iter().find_map(|&state| field(values, state, name));
    let local = get("_local_tensor").filter(|_| is_divided)?;
    let Some(&Node::Tensor(position)) = values.node(local) else { return None };
    let spec = get("_spec").and_then(|spec| values.fields(spec));
    let placements = spec.and_then(|spec| values.items(field(values, spec, "placements")?));
    let shape = values.items(arguments).and_then(|arguments| values.sizes(*arguments.get(2)?));
    let division = match (placements, shape) {
        (Some(&[placement]), Some(shape)) => along(values, placement, shape),
        (Some(several), _) => Err(format!("a mesh of {} dimensions divides it", several.len())),
        _ => Err("it does not say how ranks have divided it".into()),
    };
    Some((position, division))
}

fn along(values: &Values, placement: Value, shape: Vec<usize>) -> Result<Division, String> {
    let unknown = || "its placement is of no known kind".to_owned();
    match values.class_of(placement).ok_or_else(unknown)?.1 {
        "Replicate" => Ok(Division::Whole),
        "Shard" => {
            let dim = values.fields(placement).and_then(|it| field(values, it, "dim"));
            let Some(Value::Int(dim)) = dim else { return Err(unknown()) };
            let dim = if dim < 0 { dim.saturating_add(shape.len() as i64) } else { dim };
            match usize::try_from(dim) {
                Ok(dim) if dim < shape.len() => Ok(Division::Along { dim, shape }),
                _ => Err(format!("it is divided along dimension {dim} of shape {shape:?}")),
            }
        }
        other => Err(format!(
            "it has the placement {}; only Shard and Replicate are joined",
            Quoted(other)
        )),
    }
}

/// Many objects could share a dictionary of many fields, and each search would pass all.
fn field(values: &Values, fields: Value, name: &str) -> Option<Value> {
    values.dict(fields).filter(|fields| fields.len() <= MOST_FIELDS)?;
    values.get(fields, name)
}

/// Takes the parts of a tensor out of the ranks. An error comes with its rank.
fn join(name: &str, ranks: &mut [Parts]) -> Result<WholeTensor, (usize, Error)> {
    let bad = |rank: usize, problem: String| (rank, bad(problem));
    let count = ranks.len();
    let mut parts = Vec::with_capacity(count);
    for (rank, of_rank) in ranks.iter_mut().enumerate() {
        let part = of_rank.tensors.remove(name);
        parts.push(part.ok_or_else(|| bad(rank, "the rank does not have it".into()))?);
    }
    let Some((first, division)) = parts.first() else { return Err(bad(0, "no rank".into())) };
    let shape = match division {
        Division::Whole => first.shape.clone(),
        Division::Along { shape, .. } => shape.clone(),
    };
    let dtype = first.dtype;
    let division = division.clone();
    let mut stored = None;
    let mut pieces = Vec::new();
    for (rank, (part, of_rank)) in parts.into_iter().enumerate() {
        let region = division.region(&shape, rank, count);
        if let Region::Box { sizes, .. } = &region
            && (part.dtype != dtype || part.shape != *sizes || of_rank != division)
        {
            let problem = format!(
                "it should have {dtype} of shape {sizes:?} of {shape:?}, found {} of shape {:?}; \
                 the ranks have not saved the same model",
                part.dtype, part.shape
            );
            return Err(bad(rank, problem));
        }
        if rank == 0 {
            stored = part.stored;
        }
        if rank == 0 || division != Division::Whole {
            pieces.push((rank, region, part.data));
        }
    }
    Ok(WholeTensor { name: name.to_owned(), dtype, shape, stored, pieces })
}

impl Division {
    fn region(&self, shape: &[usize], rank: usize, count: usize) -> Region {
        let Self::Along { dim, .. } = self else { return Region::whole(shape) };
        // As `torch.chunk` divides: the last parts are shorter, or empty.
        let range = shape[*dim].div_ceil(count);
        let first = range.saturating_mul(rank).min(shape[*dim]);
        let mut offsets = vec![0; shape.len()];
        let mut sizes = shape.to_vec();
        offsets[*dim] = first;
        sizes[*dim] = range.min(shape[*dim] - first);
        Region::Box { offsets, sizes }
    }
}
