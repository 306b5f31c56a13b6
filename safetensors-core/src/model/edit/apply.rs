//! Applying an edit, in place or by a new file.

use std::io;

use super::open::check_unchanged;
use super::plan::{EditPlan, Run};
use super::{Edit, Edited, header};
use crate::file::io::copy::copy_range;
use crate::file::io::identity::links;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::positional::write_all_at;
use crate::file::io::{FileSource, SafeTensors, failpoint};
use crate::file::save::atomic::{AtomicFile, directory};
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::write_exactly;

pub(super) fn apply(mut edit: Edit<'_>) -> Result<Edited> {
    if edit.read_only {
        let error =
            io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened read-only");
        return Err(ErrorKind::Io(error).into());
    }
    let plan = EditPlan::new(&edit)?;
    let outcome = edit.check_place(plan.outcome(&edit), plan.change)?;
    if outcome == Edited::Unchanged {
        return Ok(Edited::Unchanged);
    }
    if outcome == Edited::InPlace {
        let lock = lock(&edit)?;
        check_unchanged(edit.archive.source(), &edit.destination)?;
        // A delta may have given it another name while this waited.
        let names = links(edit.archive.source().file())?;
        if names == 1 && header::replace(&edit, &plan.layout.prefix)? {
            return Ok(Edited::InPlace);
        }
        drop(lock);
        // The header is unchanged, but the file has a new time of writing.
        edit.archive.source_mut().refresh()?;
        let file = rewrite(&edit, &EditPlan::new(&edit)?)?;
        return take_place(edit, file);
    }
    let file = rewrite(&edit, &plan)?;
    take_place(edit, file)
}

fn take_place(edit: Edit<'_>, mut new: AtomicFile) -> Result<Edited> {
    new.begin_commit()?;
    let source = edit.archive.into_source();
    check_unchanged(&source, &edit.destination)?;
    // On Unix the old file stays open, and so locked, until the new one is in place. Other systems
    // may not replace an open file.
    let _source = cfg!(unix).then_some(source);
    new.commit_held()?;
    Ok(Edited::Rewritten)
}

// No save replaces the file between the check for changes and the edit.
fn lock(edit: &Edit<'_>) -> Result<DirectoryLock> {
    Ok(DirectoryLock::wait_for(directory(&edit.destination))?)
}

fn rewrite(edit: &Edit<'_>, plan: &EditPlan<'_>) -> Result<AtomicFile> {
    let source = edit.archive.source().file();
    let original = source.metadata()?;
    let destination = edit.destination.clone();
    // Data that stays is copied together with the old header, because a file system can share only
    // full blocks. The new header comes over the old one.
    let new = if plan.data_stays {
        AtomicFile::copy_in_place_of(destination, source, &original)
    } else {
        AtomicFile::create_in_place_of(destination, Some(&original))
    };
    let new = new?.durable(edit.durable);
    let file = new.file();
    if !plan.data_stays {
        // No space is reserved: blocks that are shared with the old file need none.
        failpoint::hit("set the length").and_then(|()| file.set_len(plan.layout.file_len()))?;
        for Run { from, to, len } in plan.runs(edit.header().data_start()) {
            copy_range(source, from, file, to, len)?;
        }
    }
    write_all_at(file, &plan.layout.prefix, 0)?;
    for (i, place) in plan.appended() {
        let (name, tensor) = &edit.appended[i];
        let mut at = place.start;
        write_exactly(tensor, place.end - place.start, &mut |bytes| {
            write_all_at(file, bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })
        .map_err(|error| error.in_tensor(name))?;
    }
    if plan.records_later(edit) {
        let written = file.try_clone().and_then(|file| FileSource::from_open(file, &edit.path));
        let written = SafeTensors::from_source(written?)?;
        let prefix = plan.prefix_with(edit, edit.digests_of(&written)?)?;
        write_all_at(file, &prefix, 0)?;
    }
    Ok(new)
}
