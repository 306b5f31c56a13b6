//! [`open_index`]: several files of PyTorch as one checkpoint.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use safetensors_core::audit::Finding;
use safetensors_core::{ErrorKind as CoreKind, ReadAt};
use serde::Deserialize;
use serde_json::Number;
use serde_json::value::RawValue;

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::input::AnyStore;
use crate::pairs::Pairs;
use crate::tensor_file::{Opened, TensorFile};
use crate::{Format, Options};

/// The index decides which tensors a shard has. Others are skipped; [`TensorFile::findings`] names
/// them.
///
/// It may be hostile: its size is limited, duplicate names are refused, and names of shards must be
/// plain relative paths.
pub(crate) fn open_index(
    store: &AnyStore,
    path: &Path,
    options: &Options,
    open_shard: impl Fn(Box<dyn ReadAt>, &Path, &Options, &Budget) -> Result<TensorFile>,
) -> Result<Opened> {
    let located = |error: Error| error.in_path(path);
    let open = |path: &Path| store.open(path).map_err(|error| error.in_path(path));
    let index = open(path)?;
    let budget = Budget::new(&options.limits);
    budget.grow(index.byte_len());
    let text = read(&index, options).map_err(located)?;
    // The names and the tables of them, which take several times the bytes of their text.
    budget.keep(text.len().saturating_mul(8)).map_err(located)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut opened = Opened::new();
    let (shards, total_size) = shards(&text).map_err(located)?;
    for (shard, names) in shards {
        let file = folder.join(&shard);
        let options = Options { placed: Some(names), ..options.clone() };
        let source = open(&file)?;
        budget.grow(source.byte_len());
        let tensors = open_shard(source, &file, &options, &budget)?;
        if tensors.format() != Format::Pytorch {
            let found = tensors.format().to_string();
            let error = Error::from(ErrorKind::OtherFormat { expected: "PyTorch", found });
            return Err(error.in_path(&file));
        }
        let missing = options.placed.iter().flatten().filter(|name| !tensors.has(name)).min();
        if let Some(missing) = missing {
            let error = Error::from(CoreKind::NotInShard { shard });
            return Err(located(error.in_tensor(missing)));
        }
        opened.push((file, tensors));
    }
    // A save replaces or changes the index before it changes a shard that the index names.
    let is_replaced = index.is_replaced().map_err(|error| located(error.into()))?;
    if is_replaced || read(&index, options).map_err(located)? != text {
        let error = io::Error::other("the index changed while its shards were opened");
        return Err(located(error.into()));
    }
    let lens: Option<Vec<_>> = opened.iter().map(|(_, file)| file.data_len()).collect();
    let expected = lens.map(|lens| lens.into_iter().fold(0, u64::saturating_add));
    if let (Some(expected), Some(found), [(_, first), ..]) = (expected, total_size, &mut *opened)
        && expected != found
    {
        first.findings.push(Finding::WrongTotalSize { file: path.to_owned(), expected, found });
    }
    Ok(opened)
}

fn read(index: &dyn ReadAt, options: &Options) -> Result<Vec<u8>> {
    let limit = options.limits.directory_bytes;
    if index.byte_len() > limit {
        return Err(ErrorKind::DirectoryTooLong { limit }.into());
    }
    let mut text = vec![0; index.byte_len() as usize];
    index.read_exact_at(&mut text, 0)?;
    index.check_unchanged()?;
    Ok(text)
}

type ShardNames = BTreeMap<String, HashSet<String>>;

/// Also returns the bytes of all tensors, by the index.
fn shards(text: &[u8]) -> Result<(ShardNames, Option<u64>)> {
    let bad = |problem: String| Error::from(ErrorKind::BadIndex { problem });
    let index: Index<'_> = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    let mut shards = ShardNames::new();
    for (tensor, shard) in index.weight_map.0 {
        if !is_safe(&shard) {
            return Err(bad(format!(
                "the name of a shard must be a plain relative path, found {shard:?}"
            )));
        }
        shards.entry(shard).or_default().insert(tensor);
    }
    if shards.is_empty() {
        return Err(bad("the weight_map is empty".into()));
    }
    let metadata = index.metadata.and_then(|it| serde_json::from_str(it.get()).ok());
    let size = metadata.and_then(|Metadata { total_size: size }| {
        size.as_u64().or(size.as_f64().map(|size| size as u64))
    });
    Ok((shards, size))
}

/// Returns `true` if a name leads below the index's folder, on every system.
fn is_safe(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    !name.contains(['\\', ':', '\0']) && name.split('/').all(plain)
}

#[derive(Deserialize)]
struct Index<'a> {
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    /// The length of the text limits the entries.
    weight_map: Pairs<String, { usize::MAX }>,
}

#[derive(Deserialize)]
struct Metadata {
    /// Some programs write a float.
    total_size: Number,
}
