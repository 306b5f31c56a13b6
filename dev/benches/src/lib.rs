//! Takes samples of contenders side by side, and prints them as a table.

mod cache;
pub mod data;
pub mod files;
mod machine;
mod memory;
pub mod report;
pub mod sample;
pub mod system;
