//! [`FilePattern`]: the names of a checkpoint's files.

use std::str::FromStr;

use super::names::{FILE_SUFFIX, INDEX_SUFFIX, is_safe, set_aside, shard_numbers, stem};
use crate::format::error::{Error, ErrorKind};

/// The names of a checkpoint's files, such as `model{suffix}.safetensors`.
///
/// `{suffix}` is empty for one file, and `-00001-of-00003` and so on for several. Their index is
/// named like the single file, with `.index.json` after it.
///
/// ```
/// use safetensors_core::checkpoint::FilePattern;
///
/// let pattern: FilePattern = "model.fp16{suffix}.safetensors".parse()?;
/// assert_eq!(pattern.file_name(0, 1), "model.fp16.safetensors");
/// assert_eq!(pattern.file_name(1, 3), "model.fp16-00002-of-00003.safetensors");
/// assert_eq!(pattern.index_name(), "model.fp16.safetensors.index.json");
/// assert!("model.safetensors".parse::<FilePattern>().is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern {
    prefix: String,
    /// Between `{suffix}` and the extension.
    rest: String,
}

impl Default for FilePattern {
    /// `model{suffix}.safetensors`.
    fn default() -> Self {
        Self { prefix: "model".into(), rest: String::new() }
    }
}

impl FromStr for FilePattern {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::BadFilePattern`] unless the text contains `{suffix}` exactly once, and is a
    /// plain file name that ends in `.safetensors`.
    fn from_str(pattern: &str) -> Result<Self, Error> {
        let parts = pattern.split_once("{suffix}").filter(|(_, rest)| !rest.contains("{suffix}"));
        let parts =
            parts.and_then(|(prefix, rest)| Some((prefix, rest.strip_suffix(FILE_SUFFIX)?)));
        let made = parts.map(|(prefix, rest)| Self { prefix: prefix.into(), rest: rest.into() });
        made.filter(|pattern| {
            let name = pattern.file_name(0, 1);
            // A name that is only the ending would be a hidden file.
            is_safe(&name) && !name.contains('/') && name != FILE_SUFFIX
        })
        .ok_or_else(|| ErrorKind::BadFilePattern { found: pattern.into() }.into())
    }
}

impl FilePattern {
    pub(super) fn from_name(name: &str) -> Self {
        let stem = name.strip_suffix(INDEX_SUFFIX).or_else(|| name.strip_suffix(FILE_SUFFIX));
        Self { prefix: stem.unwrap_or(name).into(), rest: String::new() }
    }

    /// Returns the file name of shard number `shard`, counted from 0, of `shards` in all.
    #[doc(hidden)]
    pub fn file_name(&self, shard: usize, shards: usize) -> String {
        let Self { prefix, rest } = self;
        match shards {
            0 | 1 => format!("{prefix}{rest}{FILE_SUFFIX}"),
            _ => format!("{prefix}-{:05}-of-{shards:05}{rest}{FILE_SUFFIX}", shard + 1),
        }
    }

    /// Returns the name of the index.
    #[doc(hidden)]
    pub fn index_name(&self) -> String {
        let Self { prefix, rest } = self;
        format!("{prefix}{rest}{INDEX_SUFFIX}")
    }

    pub(super) fn longest_name(&self) -> String {
        set_aside(&self.file_name(0, 2), u32::MAX)
    }

    /// Parses the name of a shard, the reverse of [`file_name`](FilePattern::file_name): returns
    /// the pattern, the number of the shard, counted from 0, and the number of shards.
    ///
    /// ```
    /// use safetensors_core::checkpoint::FilePattern;
    ///
    /// let found = FilePattern::from_shard_name("model-00002-of-00003.safetensors");
    /// assert_eq!(found, Some((FilePattern::default(), 1, 3)));
    /// assert_eq!(FilePattern::from_shard_name("model.safetensors"), None);
    /// ```
    #[doc(hidden)]
    pub fn from_shard_name(name: &str) -> Option<(Self, usize, usize)> {
        let stem = name.strip_suffix(FILE_SUFFIX).filter(|whole| stem(name) == Some(whole))?;
        let found = |(at, _)| shard_numbers(&stem[at..]).map(|numbers| (&stem[..at], numbers));
        let (prefix, (shard, shards, rest)) = stem.match_indices('-').find_map(found)?;
        let shard = shard.parse::<usize>().ok()?;
        let shards = shards.parse().ok()?;
        let pattern = Self { prefix: prefix.into(), rest: rest.into() };
        // A pattern has more than an ending.
        let is_named = pattern.file_name(0, 1) != FILE_SUFFIX;
        let is_one_of_several = shards > 1 && (1..=shards).contains(&shard);
        (is_named && is_one_of_several).then(|| (pattern, shard - 1, shards))
    }

    /// Returns `true` for a file that a save by this pattern may remove: the single file, a shard
    /// of any number, or a second name of these.
    #[doc(hidden)]
    pub fn matches(&self, name: &str) -> bool {
        let Some(stem) = stem(name) else { return false };
        let suffix =
            stem.strip_prefix(&*self.prefix).and_then(|stem| stem.strip_suffix(&*self.rest));
        suffix.is_some_and(|suffix| {
            suffix.is_empty() || shard_numbers(suffix).is_some_and(|(_, _, after)| after.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in [
            "",
            "model.safetensors",
            "model{suffix}",
            "model{suffix}.bin",
            "{suffix}.safetensors",
            "{suffix}{suffix}.safetensors",
            "a/model{suffix}.safetensors",
            "../model{suffix}.safetensors",
            "a\\b{suffix}.safetensors",
            "c:m{suffix}.safetensors",
            "a\0{suffix}.safetensors",
            "model{Suffix}.safetensors",
            "model{suffix}.safetensors.gz",
            "model.safetensors{suffix}",
        ] {
            let error = pattern.parse::<FilePattern>().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::BadFilePattern { found } if found == pattern),
                "{pattern:?}"
            );
            assert!(error.to_string().contains(&format!("{pattern:?}")), "{error}");
        }
    }

    #[test]
    fn a_pattern_matches_only_its_names() {
        assert_eq!(FilePattern::default(), "model{suffix}.safetensors".parse().unwrap());
        let pattern = FilePattern::default();
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model-99999-of-00002.safetensors",
            "model-100000-of-100001.safetensors",
            "model.replaced-1.safetensors",
            "model-00001-of-00002.replaced-12.safetensors",
        ] {
            assert!(pattern.matches(name), "{name}");
        }
        for name in [
            "model.safetensors.backup",
            "model.safetensors.index.json",
            "Model.safetensors",
            "model2.safetensors",
            "model-0001-of-0002.safetensors",
            "model-00001-of-00002.bin",
            "model-00001-of-00002-old.safetensors",
            "model-00001-of-.safetensors",
            "model-0000a-of-00002.safetensors",
            "model-00001.safetensors",
            "model.fp16.safetensors",
            "model.fp16-00001-of-00002.safetensors",
            "model.replaced-.safetensors",
            "model.replaced-x.safetensors",
            "model.replaced-1.replaced-1.safetensors",
            "xmodel.safetensors",
            ".safetensors",
            "model",
            "",
        ] {
            assert!(!pattern.matches(name), "{name}");
        }
        let variant: FilePattern = "model{suffix}.fp16.safetensors".parse().unwrap();
        assert_eq!(variant.file_name(9, 10), "model-00010-of-00010.fp16.safetensors");
        assert!(
            variant.matches("model-00010-of-00010.fp16.safetensors")
                && variant.matches("model.fp16.safetensors")
        );
        assert!(
            !variant.matches("model-00010-of-00010.safetensors")
                && !variant.matches("model.safetensors")
        );
        assert!(variant.matches(&set_aside("model-00010-of-00010.fp16.safetensors", 3)));
        // The prefix and the ending must not overlap in the name.
        let overlapping: FilePattern = "aa{suffix}a.safetensors".parse().unwrap();
        assert!(!overlapping.matches("aa.safetensors"));
    }

    #[test]
    fn the_shard_of_a_name() {
        let pattern: FilePattern = "a-b{suffix}.fp16.safetensors".parse().unwrap();
        for (shard, shards) in [(0, 2), (9, 10), (99_999, 100_000)] {
            let name = pattern.file_name(shard, shards);
            let found = FilePattern::from_shard_name(&name);
            assert_eq!(found, Some((pattern.clone(), shard, shards)), "{name}");
        }
        for name in [
            "model.safetensors",
            "model-00001-of-00001.safetensors",
            "model-00000-of-00002.safetensors",
            "model-00003-of-00002.safetensors",
            "model-00001-of-99999999999999999999999.safetensors",
            "model-00001-of-00002.bin",
            "model-00001-of-00002.replaced-1.safetensors",
            "model-1-of-2.safetensors",
            "-00001-of-00002.safetensors",
            "",
        ] {
            assert_eq!(FilePattern::from_shard_name(name), None, "{name}");
        }
    }
}
