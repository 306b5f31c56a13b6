//! Converting elements.

use std::hint::black_box;

use anyhow::{Result, ensure};
use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use safetensors_bridge::element::Element;
use safetensors_bridge::{ConvertOptions, Dtype, TensorBuf};

use super::Spec;
use harness::files::Pattern;
use harness::sample::{Contender, Goal, Row};

/// 64 MiB of F32, which is more than a cache holds.
const ELEMENTS: usize = 16 << 20;

const FLOAT8: &str = "float8, one by one";
const HALF: &str = "half, by slices";

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("convert F8_E5M2 to F32", |_| {
            widen(FLOAT8, 12.0, one_by_one(|x: F8E5M2| x.to_f32()))
        }),
        Spec::new("convert F32 to F8_E4M3", |_| narrow(FLOAT8, 12.0, one_by_one(F8E4M3::from_f32))),
        Spec::new("convert BF16 to F32", |_| {
            widen(HALF, 1.0, |from: &[bf16], to| from.convert_to_f32_slice(to))
        }),
        Spec::new("convert F32 to BF16", |_| {
            narrow(HALF, 1.0, |from, to: &mut [bf16]| to.convert_from_f32_slice(from))
        }),
    ]
}

fn one_by_one<From: Copy, To>(convert: impl Fn(From) -> To) -> impl Fn(&[From], &mut [To]) {
    move |from, to| to.iter_mut().zip(from).for_each(|(to, &from)| *to = convert(from))
}

fn widen<T: Element + Pod>(
    name: &'static str,
    times: f64,
    peer: impl Fn(&[T], &mut [f32]) + 'static,
) -> Result<Row> {
    let bytes = Pattern(5).take(size_of::<T>() * ELEMENTS);
    row::<T, f32>(name, times, bytemuck::pod_collect_to_vec(&bytes), peer)
}

fn narrow<T: Element + Pod>(
    name: &'static str,
    times: f64,
    peer: impl Fn(&[f32], &mut [T]) + 'static,
) -> Result<Row> {
    // Numbers near one, like weights, so that they do not all become infinity or zero.
    let bytes = Pattern(3).take(4 * ELEMENTS);
    let integers = bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
    let weights = integers.map(|integer| integer as f32 / (1_u32 << 29) as f32);
    row::<f32, T>(name, times, weights.collect(), peer)
}

/// A row in which each contender writes into memory that it has used before.
fn row<From: Element + Pod, To: Element + Pod>(
    name: &'static str,
    times: f64,
    values: Vec<From>,
    peer: impl Fn(&[From], &mut [To]) + 'static,
) -> Result<Row> {
    let options = ConvertOptions::new();
    let mut theirs: Vec<To> = bytemuck::zeroed_vec(ELEMENTS);
    peer(&values, &mut theirs);
    let zeros = bytemuck::zeroed_vec::<To>(ELEMENTS);
    let mut ours = TensorBuf::from_vec(vec![ELEMENTS], zeros)?;
    let from = TensorBuf::from_vec(vec![ELEMENTS], values.clone())?;
    from.view()?.convert_into(&mut ours, &options)?;
    let same = ours.bytes() == bytemuck::cast_slice::<To, u8>(&theirs);
    ensure!(same || only_nans_differ::<To>(ours.bytes(), &theirs), "{name} converts otherwise");
    let contenders = vec![
        Contender::ours("TensorView::convert_into", move |watch| {
            watch.repeat(|| Ok(from.view()?.convert_into(&mut ours, &options)?))
        }),
        Contender::peer(name, move |watch| {
            watch.repeat(|| {
                peer(black_box(&values), black_box(&mut theirs));
                Ok(())
            })
        }),
    ];
    let bytes = Some(((size_of::<From>() + size_of::<To>()) * ELEMENTS) as u64);
    Ok(Row { goals: vec![Goal::AtLeast(name, times)], bytes, ..Row::new(contenders) })
}

/// Returns `true` if both sides are NaN wherever they differ: the bits of a NaN do not matter.
fn only_nans_differ<To: Element + Pod>(ours: &[u8], theirs: &[To]) -> bool {
    let is_nan = |bytes: &[u8]| match To::DTYPE {
        Dtype::F32 => bytemuck::pod_read_unaligned::<f32>(bytes).is_nan(),
        Dtype::BF16 => bytemuck::pod_read_unaligned::<bf16>(bytes).is_nan(),
        Dtype::F8_E4M3 => bytemuck::pod_read_unaligned::<F8E4M3>(bytes).is_nan(),
        Dtype::F8_E5M2 => bytemuck::pod_read_unaligned::<F8E5M2>(bytes).is_nan(),
        _ => false,
    };
    let size = size_of::<To>();
    let mut pairs = ours.chunks(size).zip(bytemuck::cast_slice::<To, u8>(theirs).chunks(size));
    pairs.all(|(ours, theirs)| ours == theirs || (is_nan(ours) && is_nan(theirs)))
}
