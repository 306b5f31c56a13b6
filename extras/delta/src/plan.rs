//! [`UpdatePlan`]: the published versions from the present one to the newest.

use safetensors_core::checkpoint::store::Store;
use safetensors_core::{Checkpoint, ReadAt};

use crate::chain::Chain;
use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::published::{Published, Root, name, number};

/// Versions applied at once. Each has open files.
const MOST: usize = 64;

pub(crate) struct LocalVersion {
    pub(crate) version: u64,
    pub(crate) fingerprint: String,
}

pub(crate) struct UpdatePlan<S> {
    pub(crate) start: Start<S>,
    pub(crate) chain: Chain<S>,
    pub(crate) version: u64,
    /// With their fingerprints, the newest last.
    pub(crate) read: Vec<(u64, String)>,
}

pub(crate) enum Start<S> {
    Here,
    Full(u64, Box<Checkpoint<S>>),
    /// The user's base; `false` if there is none.
    Given(bool),
}

struct Link<S> {
    number: u64,
    fingerprint: String,
    /// `None` for a full version.
    delta: Option<Delta<S>>,
}

impl<S> Start<S> {
    pub(crate) fn full(&self) -> Option<u64> {
        match self {
            Self::Full(number, _) => Some(*number),
            Self::Here | Self::Given(_) => None,
        }
    }
}

impl<S: ReadAt> UpdatePlan<S> {
    /// From the newest version down to the present or a full one. `None`: nothing is new.
    pub(crate) fn new<T: Store<File = S> + 'static>(
        root: &Root<T>,
        mut here: Option<&LocalVersion>,
        until: Option<u64>,
        has_base: bool,
    ) -> Result<Option<Self>> {
        let mut start = None;
        let mut links = Vec::new();
        let mut has_unfinished = false;
        let numbers = root.numbers()?.into_iter();
        for number in numbers.filter(|number| until.is_none_or(|until| *number <= until)) {
            if here.is_some_and(|here| number < here.version) {
                if !links.is_empty() {
                    // The version that is here is not published any more.
                    break;
                }
                // The newest one is older, so the publisher has started over. To wait until the new
                // run has come as far would serve weights of a run that has ended.
                here = None;
            }
            let Some(published) = root.open(number)? else {
                has_unfinished = true;
                continue;
            };
            let fingerprint = published.fingerprint()?;
            if let Some(state) = here.filter(|here| here.version == number) {
                if state.fingerprint == fingerprint {
                    break;
                }
                // It is another version of the same number.
                here = None;
            }
            // The links that are applied first.
            if links.len() == MOST {
                links.remove(0);
            }
            match published {
                Published::Full(full) => {
                    links.push(Link { number, fingerprint, delta: None });
                    start = Some(Start::Full(number, full));
                    break;
                }
                Published::Delta(delta) => {
                    links.push(Link { number, fingerprint, delta: Some(*delta) });
                }
            }
        }
        links.reverse();
        let without_full = if here.is_some() { Start::Here } else { Start::Given(has_base) };
        let start = start.unwrap_or(without_full);
        let from = match &start {
            Start::Full(number, _) => Some(*number),
            _ => here.map(|here| here.version),
        };
        if has_unfinished {
            // Versions after an incomplete one wait for it.
            let is_groundless = matches!(start, Start::Given(false));
            links.truncate(if is_groundless { 0 } else { leading(from, &links) });
        }
        Self::from_links(start, from, links)
    }

    fn from_links(start: Start<S>, from: Option<u64>, links: Vec<Link<S>>) -> Result<Option<Self>> {
        let Some(version) = links.last().map(|link| link.number) else { return Ok(None) };
        let read = links.iter().map(|link| (link.number, link.fingerprint.clone())).collect();
        let deltas: Vec<_> = links.into_iter().filter_map(|link| link.delta).collect();
        let chain = if deltas.is_empty() { Chain::empty() } else { Chain::new(deltas)? };
        if let Some(first) = chain.deltas().first() {
            let base = first.base_version().to_owned();
            let version = first.version().to_owned();
            let kind = match from {
                None if matches!(start, Start::Given(false)) => {
                    Some(ErrorKind::NoBase { base, version })
                }
                Some(from) if number(&base) != Some(from) => {
                    Some(ErrorKind::Gap { from: name(from), base, version })
                }
                _ => None,
            };
            if let Some(kind) = kind {
                return Err(Error::from(kind).in_path(first.path()));
            }
        }
        Ok(Some(Self { start, chain, version, read }))
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.read.last().map_or("", |(_, fingerprint)| fingerprint)
    }
}

fn leading<S>(mut from: Option<u64>, links: &[Link<S>]) -> usize {
    let follows = |link: &&Link<S>| {
        let base = link.delta.as_ref().map(|delta| number(delta.base_version()));
        let follows = from.is_none() || base.is_none_or(|base| base == from);
        from = Some(link.number);
        follows
    };
    links.iter().take_while(follows).count()
}
