//! Pages of the usual size, where a program cannot ask for others. See `hugepage.rs`.

use core::ops::Range;

/// The pages behind the buffers of a load.
pub(crate) struct Pages;

impl Pages {
    pub(crate) fn of(_: impl IntoIterator<Item = Range<*const u8>>) -> Self {
        Self
    }

    pub(crate) fn advise(&self) {}

    pub(crate) fn prepare(&self, _: Range<*const u8>) {}
}
