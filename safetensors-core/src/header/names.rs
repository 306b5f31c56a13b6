//! [`NameTable`]: from a name to a position in a list that holds the names.

use core::hash::{BuildHasher, Hasher};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

/// A hash table over names that are stored elsewhere. It keeps positions only.
///
/// The hash is seeded anew for each table, so a file cannot be made to collide.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    positions: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameTable {
    /// Makes room for this many names in all.
    pub(crate) fn reserve<'a>(&mut self, names: usize, name_at: impl Fn(usize) -> &'a str) {
        self.positions.reserve(names, |&position| hash(&self.hasher, name_at(position as usize)));
    }

    /// Adds `name`, which `name_at` gives for `position`, unless it is there already.
    ///
    /// Returns whether it was added. Positions from 2³² on are refused likewise: no header under
    /// any sensible limit has so many tensors.
    pub(crate) fn insert<'a>(
        &mut self,
        name: &str,
        position: usize,
        name_at: impl Fn(usize) -> &'a str,
    ) -> bool {
        let Ok(stored) = u32::try_from(position) else { return false };
        let entry = self.positions.entry(
            hash(&self.hasher, name),
            |&other| name_at(other as usize) == name,
            |&other| hash(&self.hasher, name_at(other as usize)),
        );
        match entry {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert(stored);
                true
            }
        }
    }

    /// The position of `name`.
    pub(crate) fn find<'a>(&self, name: &str, name_at: impl Fn(usize) -> &'a str) -> Option<usize> {
        self.positions
            .find(hash(&self.hasher, name), |&position| name_at(position as usize) == name)
            .map(|&position| position as usize)
    }
}

/// The hash of the bytes alone: nothing else is hashed with a name, so its end needs no mark.
fn hash(hasher: &DefaultHashBuilder, name: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name.as_bytes());
    hasher.finish()
}
