//! The names of a checkpoint's files: how they end, what they say, which of them are safe.

/// How the name of a file of tensors ends.
pub(super) const FILE_SUFFIX: &str = ".safetensors";

/// How the name of an index ends.
pub(super) const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// The file that a directory opens as, whatever else it has.
pub(crate) const STANDARD_FILE: &str = "model.safetensors";

/// The index that a directory opens as if it does not have the [`STANDARD_FILE`].
pub(crate) const STANDARD_INDEX: &str = "model.safetensors.index.json";

/// What stands between the shard's name and a number in the name of a shard that is about to be
/// replaced.
const REPLACED: &str = ".replaced-";

/// Whether a shard's file name stays below the index's folder on every system, and is that of a
/// safetensors file.
///
/// `\` and `:` are refused everywhere: on Windows they would be a separator and a drive or stream.
pub(super) fn is_safe(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.ends_with(FILE_SUFFIX) && !name.contains(['\\', ':', '\0']) && name.split('/').all(plain)
}

/// The two numbers in a text that starts like `-00001-of-00003`, and what follows them.
pub(super) fn shard_numbers(text: &str) -> Option<(&str, &str, &str)> {
    let number = |text: &str| {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        (digits >= 5).then_some(digits)
    };
    let text = text.strip_prefix('-')?;
    let (shard, text) = text.split_at(number(text)?);
    let text = text.strip_prefix("-of-")?;
    let (shards, text) = text.split_at(number(text)?);
    Some((shard, shards, text))
}

/// Whether a file is by its name one shard of more than one.
pub(super) fn is_shard_of_several(name: &str) -> bool {
    let numbers = name.match_indices('-').find_map(|(at, _)| shard_numbers(&name[at..]));
    numbers.is_some_and(|(_, shards, _)| !matches!(shards.trim_start_matches('0'), "" | "1"))
}

/// The name under which a file stays while another takes its place.
pub(super) fn set_aside(name: &str, number: u32) -> String {
    format!("{}{REPLACED}{number}{FILE_SUFFIX}", name.strip_suffix(FILE_SUFFIX).unwrap_or(name))
}

/// The name, without its ending, of a file that may have been [set aside](set_aside).
pub(super) fn stem(name: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = name.strip_suffix(FILE_SUFFIX)?;
    Some(match stem.rsplit_once(REPLACED) {
        Some((stem, number)) if is_number(number) => stem,
        _ => stem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_several() {
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
