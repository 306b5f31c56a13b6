//! Files that are written piece by piece, from several threads, and front to back into any writer.

mod appending;
#[cfg(target_os = "linux")]
mod full_disk;
mod layouts;
mod pipes;
mod writing;
