//! NumPy's `.npy` files, with one array each.
//!
//! [`Array`] reads, [`write()`] writes, [`Header`] is the part before the elements.
//!
//! Versions 1.0, 2.0 and 3.0 are read, in C and [Fortran](Order::Fortran) order, little- and
//! [big-endian](ByteOrder::Big). These types have dtypes, both ways:
//!
//! | NumPy | dtype |
//! |---|---|
//! | `b1` | BOOL; a byte that is neither 0 nor 1 is an error |
//! | `i1` `i2` `i4` `i8` | I8 I16 I32 I64 |
//! | `u1` `u2` `u4` `u8` | U8 U16 U32 U64 |
//! | `f2` `f4` `f8` | F16 F32 F64 |
//! | `c8` | C64 |
//!
//! Others are an error that names the type: `c16`, texts, dates, objects, fields. NumPy has no BF16
//! and no floats of 8 bits: it writes types of `ml_dtypes` as `V2` and `V1`, without their meaning,
//! which are errors, too.

mod array;
mod descr;
mod file;
mod header;
mod literal;
mod write;

pub use array::Array;
pub use descr::ByteOrder;
pub(crate) use descr::encode;
pub(crate) use descr::parse as parse_descr;
pub(crate) use file::{open_file, tensor};
pub(crate) use header::header_of_member;
pub use header::{Header, Order};
pub use write::{write, write_data};
