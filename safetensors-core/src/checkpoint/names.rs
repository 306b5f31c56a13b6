//! The names of a checkpoint's files.

pub(super) use crate::file::io::hidden::shard_numbers;

pub(super) const FILE_SUFFIX: &str = ".safetensors";

pub(super) const UQFF_SUFFIX: &str = ".uqff";

pub(super) const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// A directory with this file opens as it, regardless of its other files.
pub(crate) const STANDARD_FILE: &str = "model.safetensors";

/// A directory with this index, and not the [`STANDARD_FILE`], opens as it.
pub(crate) const STANDARD_INDEX: &str = "model.safetensors.index.json";

/// In the second name of an old shard, such as `model.replaced-1.safetensors`.
const REPLACED: &str = ".replaced-";

/// Returns `true` if the name of a shard leads below the index's folder on every system.
pub(super) fn is_safe(name: &str) -> bool {
    name.ends_with(FILE_SUFFIX) && name.split('/').all(is_plain)
}

/// Returns `true` if, on every system, this is the name of a file and not a path.
pub(super) fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

pub(super) fn is_other_file(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_plain(name) && ![FILE_SUFFIX, INDEX_SUFFIX].iter().any(|suffix| lower.ends_with(suffix))
}

pub(super) fn is_shard_of_several(name: &str) -> bool {
    let numbers = name.match_indices('-').find_map(|(at, _)| shard_numbers(&name[at..]));
    numbers.is_some_and(|(_, shards, _)| !matches!(shards.trim_start_matches('0'), "" | "1"))
}

pub(super) fn set_aside(name: &str, number: u32) -> String {
    format!("{}{REPLACED}{number}{FILE_SUFFIX}", name.strip_suffix(FILE_SUFFIX).unwrap_or(name))
}

pub(super) fn stem(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(FILE_SUFFIX)?;
    let Some((before, number)) = stem.rsplit_once(REPLACED) else { return Some(stem) };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    Some(if is_number { before } else { stem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_shards_are_recognised() {
        for name in [
            "model-00001-of-00002.safetensors",
            "a-b-00010-of-00010.fp16.safetensors",
            "m-100000-of-100000.x",
        ] {
            assert!(is_shard_of_several(name), "{name}");
        }
        for name in [
            "model.safetensors",
            "model-00001-of-00001.safetensors",
            "model-1-of-2.safetensors",
            "",
            "-",
            "é-é",
        ] {
            assert!(!is_shard_of_several(name), "{name}");
        }
    }
}
