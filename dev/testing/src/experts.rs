//! The small mixtures of experts that `dev/scripts/expert_fixtures.py` makes.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A layer of a model as two files, next to a config.json.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// The architecture, such as `mixtral`.
    pub name: String,
    /// The file with a matrix for each expert.
    pub split: PathBuf,
    /// The file with a tensor for all experts.
    pub stacked: PathBuf,
}

impl Mixture {
    /// Returns all fixtures, sorted by their names. A test runs in the folder of its package, which
    /// is a sibling of this package's.
    pub fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/experts");
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = entries
            .map(|folder| Self {
                name: folder.file_name().unwrap().to_str().unwrap().to_owned(),
                split: folder.join("split.safetensors"),
                stacked: folder.join("stacked.safetensors"),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 30, "found {} fixtures", all.len());
        all
    }

    /// Returns the fixture of this name.
    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|fixture| fixture.name == name).unwrap()
    }
}
