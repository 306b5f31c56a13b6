//! Split GGUF files: `NAME-00001-of-00003.gguf` and so on are one file.
//!
//! Each part has its number, the number of parts, and the number of all tensors. The first has the
//! model's keys.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::ErrorKind as CoreKind;

use super::companions;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor_file::{Split, TensorFile};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// `None` for a file that is not split. The file has `own` tensors.
pub(super) fn take(keys: &mut BTreeMap<String, String>, own: u64) -> Result<Option<Split>, String> {
    let number = |keys: &BTreeMap<String, String>, key: &str| -> Result<Option<u64>, String> {
        let Some(text) = keys.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{key} should be a number, found {text}"))
    };
    let small = |number: Option<u64>| u16::try_from(number.unwrap_or(0));
    let (Ok(count), Ok(part)) = (small(number(keys, COUNT)?), small(number(keys, NUMBER)?)) else {
        return Err(format!("{COUNT} and {NUMBER} should fit 16 bits"));
    };
    if count <= 1 {
        return Ok(None);
    }
    if part >= count {
        return Err(format!("{NUMBER} is {part}, but there are {count} parts"));
    }
    let tensors = number(keys, TENSORS)?;
    // They are about the files, and not about the model that the parts are together.
    [NUMBER, COUNT, TENSORS].iter().for_each(|key| drop(keys.remove(*key)));
    Ok(Some(Split { number: part, count, tensors, own }))
}

/// Checks that they belong together. Returns all, in order.
pub(crate) fn open_parts(
    file: TensorFile,
    split: Split,
    path: &Path,
    open: impl Fn(&Path) -> Result<TensorFile>,
) -> Result<Vec<(PathBuf, TensorFile)>> {
    let Split { number, count, .. } = split;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let end = end(number, count);
    let Some(stem) = name.strip_suffix(&end) else {
        let part = u32::from(number) + 1;
        return Err(bad(format!("part {part} of {count} should have a name in {end}"), path));
    };
    let mut files = vec![(path.to_owned(), file)];
    let mut all = split.own;
    for other in (0..count).filter(|&other| other != number) {
        let name = format!("{stem}{}", self::end(other, count));
        let sibling = path.with_file_name(&name);
        let file = open(&sibling).map_err(|error| match error.kind() {
            CoreKind::Io(io) if io.kind() == io::ErrorKind::NotFound => {
                bad(format!("of {count} parts, {name} is missing"), path)
            }
            _ => error,
        })?;
        let found = file.split();
        let own = found.map_or(0, |found| found.own);
        let expected = Some(Split { number: other, own, ..split });
        if found != expected {
            let problem = format!("it should be {}, found {}", shown(expected), shown(found));
            return Err(bad(problem, &sibling));
        }
        all = all.saturating_add(own);
        files.push((sibling, file));
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    if let Some((path, name)) = companions::apart(&files) {
        let problem = format!(
            "{name}, which changes the numbers of its weight, is in another part; llama-gguf-split \
             --merge makes one file of all parts"
        );
        return Err(bad(problem, path));
    }
    match split.tensors.filter(|&tensors| tensors != all) {
        Some(tensors) => {
            Err(bad(format!("its parts should have {tensors} tensors, but have {all}"), path))
        }
        None => Ok(files),
    }
}

fn bad(problem: String, path: &Path) -> Error {
    Error::from(ErrorKind::BadSplit { problem }).in_path(path)
}

fn end(number: u16, count: u16) -> String {
    format!("-{:05}-of-{count:05}.gguf", u32::from(number) + 1)
}

fn shown(split: Option<Split>) -> String {
    let Some(Split { number, count, tensors, .. }) = split else { return "no part".into() };
    let tensors = tensors.map(|tensors| format!(", of {tensors} tensors")).unwrap_or_default();
    format!("part {} of {count}{tensors}", u32::from(number) + 1)
}
