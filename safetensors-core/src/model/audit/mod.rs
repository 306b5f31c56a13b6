//! Finds oddities of a checkpoint that break no rule.
//! [`Checkpoint::audit`] and [`Checkpoint::audit_values`] list them. The [`Severity`] of a
//! [`Finding`] shows whether the file departs from the text of the format, or probably from its
//! author's intent.

mod finding;
mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use finding::{Finding, Severity};
pub use layout::FileLayout;
use layout::MisalignedTensor;

use crate::checkpoint::store::FileKind;
use crate::checkpoint::{
    Checkpoint, CheckpointFile, CheckpointPath, STANDARD_FILE, STANDARD_INDEX,
};
use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::tensor::non_bools;

/// The format asks for this.
const DATA_ALIGNMENT: u64 = 8;

impl<S: ReadAt> CheckpointFile<S> {
    /// Determines the layout of the file, from the white space at both ends of the header.
    pub fn layout(&self) -> Result<FileLayout> {
        FileLayout::read(self.safetensors()).map_err(|error| error.in_path(self.path()))
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Lists the oddities of the checkpoint that break no rule: findings about the index, then
    /// about each file in order. No tensor is read.
    ///
    /// ```
    /// use safetensors_core::audit::Severity;
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &SaveOptions::new())?;
    /// for finding in Checkpoint::open(&path)?.audit()? {
    ///     let what = if finding.severity() == Severity::Warning { "warning" } else { "note" };
    ///     println!("{what}: {finding}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RankProblem::PartsOfTensors`](crate::error::RankProblem::PartsOfTensors) for joined parts
    /// of ranks; [`ErrorKind::Io`](crate::ErrorKind::Io) if a directory or file cannot
    /// be read.
    pub fn audit(&self) -> Result<Vec<Finding>> {
        let files = self.stored_files()?;
        let mut findings = Vec::new();
        if let Some(index) = self.index_path() {
            findings.extend(self.unindexed_findings());
            findings.extend(self.total_size_finding(index));
            findings.extend(self.strays(index)?);
        } else if let Some(finding) = self.shadowed_finding()? {
            findings.push(finding);
        }
        for shard in files {
            layout_findings(shard.path(), shard.layout()?, &mut findings);
            if let Some(backup) = self.header_backup_of(shard.path()) {
                findings.push(Finding::HeaderBackup { file: shard.path().into(), backup });
            }
        }
        Ok(findings)
    }

    fn unindexed_findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        // Tensors of the same file come one after the other.
        for (shard, tensor) in self.unindexed() {
            match findings.last_mut() {
                Some(Finding::UnindexedTensors { file, others, .. }) if file == shard.path() => {
                    *others += 1
                }
                _ => {
                    let file = shard.path().into();
                    let tensor = tensor.name().into();
                    findings.push(Finding::UnindexedTensors { file, tensor, others: 0 });
                }
            }
        }
        findings
    }

    fn total_size_finding(&self, index: &Path) -> Option<Finding> {
        let expected = self.tensors().map(|tensor| tensor.byte_len()).fold(0, u64::saturating_add);
        let found = self.index_total_size().filter(|&found| found != expected)?;
        Some(Finding::WrongTotalSize { file: index.into(), expected, found })
    }

    fn shadowed_finding(&self) -> Result<Option<Finding>> {
        let (Some(index), [file]) = (self.shadowed_index()?, self.files()) else {
            return Ok(None);
        };
        let file = file.path().to_owned();
        let is_named = self.files_of_other_index(&index).contains(&file);
        Ok((!is_named).then_some(Finding::ShadowedIndex { file, index }))
    }

    fn strays(&self, index: &Path) -> Result<Vec<Finding>> {
        let folder = index.parent().unwrap_or(Path::new(""));
        let mut named: BTreeSet<PathBuf> =
            self.files().iter().map(|shard| shard.path().to_owned()).collect();
        let mut strays = Vec::new();
        for entry in self.list(folder)?.iter().filter(|entry| entry.kind == FileKind::File) {
            match CheckpointPath::from_name(index.with_file_name(&entry.name)) {
                Some(CheckpointPath::File(file)) => strays.push(file),
                Some(CheckpointPath::Index(other)) if other != index => {
                    named.extend(self.files_of_other_index(&other));
                }
                _ => {}
            }
        }
        // Where names in other case lead to the same file, the listing has one of them.
        let without_case = |file: &Path| file.to_string_lossy().to_lowercase();
        let folded: BTreeMap<_, _> = named.iter().map(|file| (without_case(file), file)).collect();
        strays.retain(|stray| {
            let other = folded.get(&without_case(stray)).and_then(|file| self.version_of(file));
            !named.contains(stray) && (other.is_none() || other != self.version_of(stray))
        });
        strays.sort_unstable();
        let is_standard = index.file_name() == Some(STANDARD_INDEX.as_ref());
        let finding = |file: PathBuf| {
            if is_standard && file.file_name() == Some(STANDARD_FILE.as_ref()) {
                return Finding::ShadowedIndex { file, index: index.into() };
            }
            Finding::StrayFile { file }
        };
        Ok(strays.into_iter().map(finding).collect())
    }

    /// Lists BOOL tensors with bytes that are neither 0 nor 1, which can only be read as bytes. All
    /// other dtypes have only valid bit patterns, and are not read.
    pub fn audit_values(&self) -> Result<Vec<Finding>> {
        let booleans = self.tensors().filter(|tensor| tensor.dtype() == Dtype::BOOL);
        booleans.filter_map(|tensor| invalid_bools(&tensor).transpose()).collect()
    }
}

fn invalid_bools<S: ReadAt>(tensor: &LazyTensor<'_, S>) -> Result<Option<Finding>> {
    let mut first = None;
    let mut count = 0;
    let mut bytes = Vec::new();
    for piece in tensor.pieces() {
        bytes.resize(piece.byte_len() as usize, 0);
        piece.read_bytes_into(&mut bytes)?;
        let in_piece = |(index, byte)| (piece.start() + index as u64, byte);
        let mut invalid = non_bools(&bytes).map(in_piece);
        if first.is_none() {
            first = invalid.next();
            count += u64::from(first.is_some());
        }
        count += invalid.count() as u64;
    }
    let file = tensor.file().map(Path::to_owned).unwrap_or_default();
    let finding = |(index, found)| {
        let tensor = tensor.name().into();
        let others = count - 1;
        Finding::InvalidBools { file, tensor, index, found, others }
    };
    Ok(first.map(finding))
}

fn layout_findings(file: &Path, layout: FileLayout, findings: &mut Vec<Finding>) {
    let file = || file.to_owned();
    if layout.leading_space > 0 {
        findings.push(Finding::LeadingSpace { file: file(), bytes: layout.leading_space });
    }
    if layout.is_padding_foreign {
        findings.push(Finding::ForeignPadding { file: file() });
    }
    if !layout.data_start.is_multiple_of(DATA_ALIGNMENT) {
        findings.push(Finding::MisalignedData { file: file(), offset: layout.data_start });
    }
    if let Some(MisalignedTensor { name, offset, alignment }) = layout.first_misaligned {
        let others = layout.misaligned_tensors.saturating_sub(1);
        findings.push(Finding::MisalignedTensors {
            file: file(),
            tensor: name,
            offset,
            alignment,
            others,
        });
    }
}
