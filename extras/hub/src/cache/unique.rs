//! Random numbers and names that no other process uses.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::SystemTime;

pub(crate) fn number() -> u32 {
    let mut hasher = RandomState::new().build_hasher();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(now.as_nanos());
    hasher.write_u32(std::process::id());
    u32::try_from(hasher.finish() & u64::from(u32::MAX)).unwrap_or_default()
}

pub(crate) fn name(start: &str, end: &str) -> String {
    format!("{start}{:08x}{end}", number())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn names_differ() {
        let names: HashSet<_> = (0..1000).map(|_| super::name("a.", ".b")).collect();
        assert!(names.len() > 990 && names.iter().all(|name| name.len() == 12));
    }
}
