//! The command-line arguments.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// What the program was asked to do.
pub struct Args {
    words: Vec<String>,
    pub list: bool,
    pub json: PathBuf,
    pub into: Option<PathBuf>,
    pub dir: Option<PathBuf>,
    pub plot: Option<PathBuf>,
    pub child: Option<Child>,
    pub timed: Option<Timed>,
}

/// One measurement, in a process of its own that the program starts.
pub struct Child {
    pub row: String,
    pub contender: String,
    pub data: PathBuf,
}

/// Work on one file or address that is timed once, for scripts that measure other programs.
pub struct Timed {
    pub work: String,
    pub what: String,
}

impl Args {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let json = PathBuf::from("target/bench/table.json");
        let mut parsed = Self {
            words: Vec::new(),
            list: false,
            json,
            into: None,
            dir: None,
            plot: None,
            child: None,
            timed: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // Cargo adds this.
                "--bench" => {}
                "--list" => parsed.list = true,
                "--json" => parsed.json = value()?.into(),
                "--into" => parsed.into = Some(value()?.into()),
                "--dir" => parsed.dir = Some(value()?.into()),
                "--plot" => parsed.plot = Some(value()?.into()),
                "--timed" => parsed.timed = Some(Timed { work: value()?, what: value()? }),
                "--child" => {
                    parsed.child =
                        Some(Child { row: value()?, contender: value()?, data: value()?.into() });
                }
                flag if flag.starts_with('-') => bail!("unknown argument {flag}"),
                word => parsed.words.push(word.to_lowercase()),
            }
        }
        Ok(parsed)
    }

    /// Whether the arguments select this row.
    pub fn selects(&self, row: &str) -> bool {
        let row = row.to_lowercase();
        self.words.is_empty() || self.words.iter().any(|word| row.contains(word))
    }
}
