//! [`NameTable`]: finds the position of a name.

use core::hash::{BuildHasher, Hasher};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

/// A hash table of positions of names that are stored elsewhere.
// Each has a random seed, against files with names that collide.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    // A `HashMap<String, _>` would keep a second copy of each name, and a header can have two
    // million.
    positions: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameTable {
    pub(crate) fn reserve<'a>(&mut self, names: usize, name_at: impl Fn(usize) -> &'a str) {
        self.positions.reserve(names, |&position| hash(&self.hasher, name_at(position as usize)));
    }

    /// Adds `name`, and returns whether it is new. `name_at` gives the name at a position.
    // Positions from 2³² on are not added: the text of a header is too short for them.
    #[inline]
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

    #[inline]
    pub(crate) fn find<'a>(&self, name: &str, name_at: impl Fn(usize) -> &'a str) -> Option<usize> {
        self.positions
            .find(hash(&self.hasher, name), |&position| name_at(position as usize) == name)
            .map(|&position| position as usize)
    }
}

// Nothing else is hashed with the name, so it needs no terminator.
fn hash(hasher: &DefaultHashBuilder, name: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name.as_bytes());
    hasher.finish()
}
