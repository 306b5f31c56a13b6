//! Blocks of elements of any dtype.

use bytemuck::Pod;

use crate::format::dtype::Dtype;

// Intermediate values stay in the nearest cache.
pub(super) const BLOCK: usize = 2048;

// Enough bytes to hide the cost of system calls, and few enough for the cache of a core.
pub(crate) const STREAMED: usize = 512 << 10;

// Four elements of 6 bits are three bytes: these fill whole bytes in every dtype.
pub(crate) const GROUP: usize = 4;

pub(super) enum Failure {
    /// At this index of the block.
    DoesNotFit(usize),
    NoConversion,
    Misaligned,
}

pub(super) struct Scratch {
    pub(super) source: [u64; BLOCK],
    pub(super) floats: [f32; BLOCK],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { source: [0; BLOCK], floats: [0.0; BLOCK] }
    }
}

/// `elements` is a multiple of [`GROUP`] if packed.
pub(crate) fn bytes_of(dtype: Dtype, elements: usize) -> usize {
    elements * dtype.bits() as usize / 8
}

pub(crate) fn elements_of(dtype: Dtype, bytes: usize) -> usize {
    bytes * 8 / dtype.bits() as usize
}

/// Borrows aligned bytes, or copies them to `scratch`, which must have room.
pub(super) fn aligned<'a, T: Pod>(bytes: &'a [u8], scratch: &'a mut [u64]) -> &'a [T] {
    if let Ok(values) = bytemuck::try_cast_slice(bytes) {
        return values;
    }
    let scratch = &mut bytemuck::cast_slice_mut(scratch)[..bytes.len()];
    scratch.copy_from_slice(bytes);
    bytemuck::cast_slice(scratch)
}

pub(super) fn cast_mut<T: Pod>(out: &mut [u8]) -> Result<&mut [T], Failure> {
    bytemuck::try_cast_slice_mut(out).map_err(|_| Failure::Misaligned)
}

/// Fails with the index of the first element that does not fit.
pub(super) fn check_all(mut fits: impl Iterator<Item = bool>) -> Result<(), Failure> {
    fits.position(|fits| !fits).map_or(Ok(()), |index| Err(Failure::DoesNotFit(index)))
}

/// Runs `work` compiled for the widest vectors of this machine, if its code is inlined.
// The result is the same on every machine: nothing adds up elements, or fuses a multiplication and
// an addition.
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn vectorized<W: pulp::NullaryFnOnce>(work: W) -> W::Output {
    // Plain loops are compiled again for each instruction set. Intrinsics would need `unsafe`, and
    // a copy of each loop for each set.
    #[cfg(not(test))]
    let arch = pulp::Arch::new();
    #[cfg(test)]
    let arch = tests::CHOSEN.get().unwrap_or_default();
    arch.dispatch(work)
}

// Without the standard library the machine's instructions cannot be detected.
#[cfg(not(feature = "std"))]
#[inline(always)]
pub(crate) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(all(test, feature = "std"))]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::string::String;
    use std::vec::Vec;

    use pulp::Arch;

    use super::*;
    use crate::format::convert::{ConvertOptions, Overflow};
    use crate::format::tensor::TensorView;

    thread_local! {
        pub(crate) static CHOSEN: Cell<Option<Arch>> = const { Cell::new(None) };
    }

    /// Returns the kinds of vectors of this machine, after none.
    pub(crate) fn widths() -> Vec<Arch> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "no vectors there")
        )]
        let mut all = Vec::from([Arch::Scalar]);
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(pulp::x86::V3::try_new().map(Arch::V3));
            all.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        #[cfg(target_arch = "aarch64")]
        all.push(Arch::new());
        all
    }

    #[test]
    fn every_processor_converts_to_the_same_bits() {
        // More than a block, and no multiple of any width.
        const ELEMENTS: usize = BLOCK + 1020;
        let mut state = 5_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        for &from in Dtype::ALL {
            let mut bytes: Vec<u8> = (0..bytes_of(from, ELEMENTS)).map(|_| random()).collect();
            if from == Dtype::BOOL {
                bytes.iter_mut().for_each(|byte| *byte &= 1);
            }
            let view = TensorView::new(from, &[ELEMENTS], &bytes).unwrap();
            for &to in Dtype::ALL {
                for overflow in [Overflow::Ieee, Overflow::Saturate] {
                    let options = ConvertOptions::new().overflow(overflow);
                    let converted = widths().into_iter().map(|arch| {
                        CHOSEN.set(Some(arch));
                        let converted = view.convert(to, &options);
                        CHOSEN.set(None);
                        let bytes = converted.map(|buf| Vec::from(buf.bytes()));
                        bytes.map_err(|error| std::format!("{error}"))
                    });
                    let all: Vec<Result<Vec<u8>, String>> = converted.collect();
                    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{from} {to}");
                }
            }
        }
    }
}
