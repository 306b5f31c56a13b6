//! Stands in for `hugepage.rs` where there is no `madvise`.

use core::ops::Range;

pub(crate) struct Pages;

impl Pages {
    pub(crate) fn behind(_: impl IntoIterator<Item = Range<*const u8>>) -> Self {
        Self
    }

    pub(crate) fn advise(&self) {}

    pub(crate) fn prepare(&self, _: Range<*const u8>) {}
}
