//! Hostile files and failing callbacks: messages stay short, limits are kept, and work stops after
//! a panic.

mod formats;
mod limits;
mod messages;
mod panics;
