//! [`PlannedRank`]: the content of a rank's files.

use super::files::{RankFile, RankFiles, SavedPart, given};
use crate::file::save::SaveOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::parallel::Meter;
use crate::format::tensor::TensorSource;

pub(super) struct PlannedRank<'f, T> {
    files: &'f RankFiles<'f>,
    given: Vec<Option<T>>,
    progress: Meter,
}

impl<'f, T: TensorSource> PlannedRank<'f, T> {
    pub(super) fn new<N: AsRef<str>>(
        files: &'f RankFiles<'f>,
        rank: usize,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Result<Self> {
        let (given, extra) = given(files.plan, tensors);
        check(files, rank, &given, extra)?;
        let own = files.of_rank(rank).map(|file| files.data_len(file)).sum::<Result<u64>>()?;
        Ok(Self { files, given, progress: files.each.progress.for_total(own) })
    }

    pub(super) fn contents(
        &self,
        file: &RankFile,
        attempt: &str,
    ) -> Result<(Vec<SavedPart<'f>>, SaveOptions)> {
        let parts = self.files.parts(file)?;
        let options = self.files.options(&parts, attempt);
        Ok((parts, SaveOptions { progress: self.progress.clone(), ..options }))
    }

    pub(super) fn sources<'a>(
        &'a self,
        file: &'a RankFile,
        parts: &'a [SavedPart<'_>],
    ) -> impl Iterator<Item = (&'a str, &'a T)> {
        let given = |&position: &usize| self.given[position].as_ref();
        let parts = parts.iter().zip(&file.tensors);
        parts.filter_map(move |(part, position)| Some((part.name.as_str(), given(position)?)))
    }
}

fn check<T: TensorSource>(
    files: &RankFiles<'_>,
    rank: usize,
    given: &[Option<T>],
    extra: Vec<String>,
) -> Result<()> {
    let plan = files.plan;
    let own = files.of_rank(rank).flat_map(|file| &file.tensors);
    let missing = own.filter(|&&position| given[position].is_none());
    let missing: Vec<_> = missing.map(|&i| plan.tensors[i].name().to_owned()).collect();
    if !missing.is_empty() || !extra.is_empty() {
        return Err(RankProblem::WrongTensors { rank, missing, extra }.into());
    }
    for (tensor, given) in plan.tensors().zip(given) {
        let Some(given) = given else { continue };
        let shape = tensor.part(rank)?.shape(tensor.shape())?;
        let checked = check_part((tensor.dtype(), &shape), (given.dtype(), given.shape()));
        checked.map_err(|kind| Error::from(kind).in_tensor(tensor.name()))?;
    }
    Ok(())
}

pub(super) fn check_part(
    expected: (Dtype, &[usize]),
    found: (Dtype, &[usize]),
) -> Result<(), ErrorKind> {
    if expected.0 != found.0 {
        return Err(ErrorKind::WrongDtype { expected: expected.0, found: found.0 });
    }
    if expected.1 != found.1 {
        return Err(ErrorKind::WrongShape { expected: expected.1.into(), found: found.1.into() });
    }
    Ok(())
}
