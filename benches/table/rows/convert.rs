//! Converting elements.

use std::rc::Rc;

use anyhow::{Result, ensure};
use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors_bridge::{ConvertOptions, Dtype, Element, TensorBuf};

use super::Spec;
use crate::files::Pattern;
use crate::sample::{Contender, Goal, Row};

/// As many elements as make 16 MiB of F32: memory that an allocator keeps, so that no row measures the making of fresh pages.
const ELEMENTS: usize = 4 << 20;

const FLOAT8: &str = "float8, one by one";
const HALF: &str = "half, by slices";
const LIMIT: &str = "the same bytes read and written";

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("convert F8_E4M3 to F32", |_| {
            widen(FLOAT8, 12.0, |from: &[F8E4M3]| from.iter().map(F8E4M3::to_f32).collect())
        }),
        Spec::new("convert F32 to F8_E4M3", |_| {
            narrow(FLOAT8, 12.0, |from| from.iter().map(|&x| F8E4M3::from_f32(x)).collect())
        }),
        Spec::new("convert F8_E5M2 to F32", |_| {
            widen(FLOAT8, 12.0, |from: &[F8E5M2]| from.iter().map(F8E5M2::to_f32).collect())
        }),
        Spec::new("convert F32 to F8_E5M2", |_| {
            narrow(FLOAT8, 12.0, |from| from.iter().map(|&x| F8E5M2::from_f32(x)).collect())
        }),
        Spec::new("convert BF16 to F32", |_| {
            widen(HALF, 1.0, |from: &[bf16]| with_zeros(|to| from.convert_to_f32_slice(to)))
        }),
        Spec::new("convert F32 to BF16", |_| {
            narrow(HALF, 1.0, |from| with_zeros(|to: &mut [bf16]| to.convert_from_f32_slice(from)))
        }),
        Spec::new("convert F16 to F32", |_| {
            widen(HALF, 1.0, |from: &[f16]| with_zeros(|to| from.convert_to_f32_slice(to)))
        }),
        Spec::new("convert F32 to F16", |_| {
            narrow(HALF, 1.0, |from| with_zeros(|to: &mut [f16]| to.convert_from_f32_slice(from)))
        }),
    ]
}

fn widen<T: Element + bytemuck::Pod>(
    name: &'static str,
    times: f64,
    peer: impl Fn(&[T]) -> Vec<f32> + 'static,
) -> Result<Row> {
    row::<T, f32>(name, times, elements(), peer)
}

fn narrow<T: Element + bytemuck::Pod>(
    name: &'static str,
    times: f64,
    peer: impl Fn(&[f32]) -> Vec<T> + 'static,
) -> Result<Row> {
    // Numbers about one, as weights are, so that they do not all end as infinity or zero.
    let bytes = Pattern(3).take(4 * ELEMENTS);
    let weights = bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes) as f32 / (1_u32 << 29) as f32);
    row::<f32, T>(name, times, weights.collect(), peer)
}

fn elements<T: bytemuck::Pod>() -> Vec<T> {
    bytemuck::pod_collect_to_vec(&Pattern(5).take(size_of::<T>() * ELEMENTS))
}

fn row<From: Element + bytemuck::Pod, To: Element + bytemuck::Pod>(
    name: &'static str,
    times: f64,
    values: Vec<From>,
    peer: impl Fn(&[From]) -> Vec<To> + 'static,
) -> Result<Row> {
    let options = ConvertOptions::new();
    let ours = TensorBuf::from_vec(vec![ELEMENTS], values.clone())?.view()?.convert(To::DTYPE, &options)?;
    let expected = peer(&values);
    let same = ours.bytes() == bytemuck::cast_slice::<To, u8>(&expected);
    ensure!(same || only_nans_differ::<To>(ours.bytes(), &expected), "{name} converts otherwise");

    let buf = TensorBuf::from_vec(vec![ELEMENTS], values.clone())?;
    let (a, b) = (Rc::new(values), Rc::new(buf));
    let bytes = (size_of::<From>() + size_of::<To>()) * ELEMENTS;
    let c = b.clone();
    Ok(Row::new(vec![
        Contender::ours("TensorView::convert", move |watch| {
            watch.repeat(|| Ok(b.view()?.convert(To::DTYPE, &options)?))
        }),
        Contender::peer(name, move |watch| watch.repeat(|| Ok(peer(&a)))),
        Contender::limit(LIMIT, move |watch| {
            watch.repeat(|| Ok(stream(c.bytes(), size_of::<From>(), size_of::<To>())))
        }),
    ])
    .goals([Goal::Faster(name, times)])
    .bytes(bytes as u64))
}

/// Whether all elements that differ are no numbers: which of these there is does not matter.
fn only_nans_differ<To: Element + bytemuck::Pod>(ours: &[u8], theirs: &[To]) -> bool {
    let is_nan = |bytes: &[u8]| match To::DTYPE {
        Dtype::F32 => bytemuck::pod_read_unaligned::<f32>(bytes).is_nan(),
        Dtype::BF16 => bytemuck::pod_read_unaligned::<bf16>(bytes).is_nan(),
        Dtype::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).is_nan(),
        Dtype::F8_E4M3 => bytemuck::pod_read_unaligned::<F8E4M3>(bytes).is_nan(),
        Dtype::F8_E5M2 => bytemuck::pod_read_unaligned::<F8E5M2>(bytes).is_nan(),
        _ => false,
    };
    let size = size_of::<To>();
    let mut pairs = ours.chunks(size).zip(bytemuck::cast_slice::<To, u8>(theirs).chunks(size));
    pairs.all(|(ours, theirs)| ours == theirs || (is_nan(ours) && is_nan(theirs)))
}

/// Reads elements of one size and writes as many of another, by the simplest instructions that do.
fn stream(from: &[u8], from_size: usize, to_size: usize) -> Vec<u8> {
    let mut to = vec![0; from.len() / from_size * to_size];
    match (from_size, to_size) {
        (1, 4) => {
            to.as_chunks_mut::<4>().0.iter_mut().zip(from).for_each(|(to, &from)| *to = u32::from(from).to_le_bytes())
        }
        (2, 4) => {
            let pairs = to.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<2>().0);
            pairs.for_each(|(to, &from)| *to = u32::from(u16::from_le_bytes(from)).to_le_bytes());
        }
        (4, 1) => to.iter_mut().zip(from.as_chunks::<4>().0).for_each(|(to, from)| *to = from[0]),
        _ => {
            let pairs = to.as_chunks_mut::<2>().0.iter_mut().zip(from.as_chunks::<4>().0);
            pairs.for_each(|(to, &[low, high, ..])| *to = [low, high]);
        }
    }
    to
}

fn with_zeros<T: bytemuck::Zeroable>(fill: impl FnOnce(&mut [T])) -> Vec<T> {
    let mut to = bytemuck::zeroed_vec(ELEMENTS);
    fill(&mut to);
    to
}
