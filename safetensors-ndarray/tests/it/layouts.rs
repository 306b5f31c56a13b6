//! Arrays of every memory layout are written in logical order. A naive oracle lists the expected
//! elements one by one.

use std::io;
use std::ops::Range;

use ndarray::{
    Array1, Array2, Array3, ArrayD, ArrayView, ArrayViewD, Axis, Dimension, IxDyn, ShapeBuilder,
    Slice, array, s,
};
use proptest::prelude::*;
use safetensors_core::{ErrorKind, SafeTensors, SaveOptions, TensorSource};
use safetensors_ndarray::{ArrayElement, array_source};

use crate::common::place;

/// The most bytes that the adapter gathers at once, for an array without wide rows.
const BUFFER: usize = 2 << 20;

/// The most bytes that it gathers at once for 64 rows.
const WIDE_BUFFER: usize = 32 << 20;

/// Whether elements of several bytes are passed on from memory unchanged. Elsewhere their bytes are
/// swapped in a buffer.
const AS_IN_MEMORY: bool = cfg!(target_endian = "little");

/// Returns the bytes that a file must have for an array: its elements in C order.
fn oracle<T: ArrayElement, D: Dimension>(array: &ArrayView<'_, T, D>) -> Vec<u8> {
    let mut elements = Vec::with_capacity(array.len());
    array.iter().for_each(|&element| elements.push(element));
    let mut bytes = bytemuck::cast_slice(&elements).to_vec();
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(T::DTYPE.alignment()).for_each(<[u8]>::reverse);
    }
    bytes
}

/// Returns the bytes that a source writes, and the address range of each piece.
fn collect(source: &impl TensorSource) -> (Vec<u8>, Vec<Range<*const u8>>) {
    let (mut bytes, mut pieces) = (Vec::new(), Vec::new());
    source
        .write_to(&mut |piece| {
            bytes.extend_from_slice(piece);
            pieces.push(piece.as_ptr_range());
            Ok(())
        })
        .unwrap();
    (bytes, pieces)
}

/// Returns the bytes that a source writes in any order, each of them once.
fn collect_pieces(source: &impl TensorSource, len: usize) -> Vec<u8> {
    let (mut bytes, mut places) = (vec![0; len], Vec::new());
    source
        .write_pieces(&mut |offset, piece| {
            let place = offset as usize..offset as usize + piece.len();
            bytes[place.clone()].copy_from_slice(piece);
            places.push(place);
            Ok(())
        })
        .unwrap();
    places.sort_by_key(|place| (place.start, place.end));
    let end = places.iter().fold(0, |end, place| {
        assert!(place.start >= end, "written twice: {place:?}");
        assert!(place.start <= end, "not written: {end}..{}", place.start);
        place.end
    });
    assert_eq!(end, len, "not written");
    bytes
}

/// Checks the bytes that the array writes, in order and in any order. Each piece in order must be
/// borrowed from `memory`, or be at most as long as a buffer.
fn check<T: ArrayElement, D: Dimension>(array: ArrayView<'_, T, D>, memory: &[T]) {
    let source = array_source(&array);
    assert_eq!((source.dtype(), source.shape()), (T::DTYPE, array.shape()));
    let (bytes, pieces) = collect(&source);
    let layout = || format!("shape {:?}, strides {:?}", array.shape(), array.strides());
    assert!(bytes == oracle(&array), "{}", layout());
    assert!(collect_pieces(&source, bytes.len()) == bytes, "{}", layout());
    let memory: Range<*const u8> = bytemuck::cast_slice::<T, u8>(memory).as_ptr_range();
    let rows = array.shape().iter().find(|&&len| len > 1).map_or(1, |&len| len);
    let most = (64 * (bytes.len() / rows)).clamp(BUFFER, WIDE_BUFFER);
    for piece in pieces {
        let borrowed = memory.start <= piece.start && piece.end <= memory.end;
        let length = piece.end.addr() - piece.start.addr();
        assert!(borrowed || length <= most, "a copy of {length} bytes at once");
    }
}

fn counted(shape: &[usize]) -> ArrayD<u32> {
    let mut next = 0;
    ArrayD::from_shape_simple_fn(shape, || {
        next += 1;
        next
    })
}

/// Returns the elements in Fortran order.
fn fortran<T: ArrayElement>(array: &ArrayD<T>) -> ArrayD<T> {
    let mut fortran = ArrayD::from_elem(array.raw_dim().f(), T::zeroed());
    fortran.assign(array);
    fortran
}

/// One step from an array to a view of it.
#[derive(Clone, Debug)]
enum Step {
    Slice { axis: usize, start: usize, step: isize },
    Swap(usize, usize),
    Reverse(usize),
    Insert(usize),
    Broadcast { axis: usize, len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_usize, 0..3_usize, prop_oneof![-3..=-1_isize, 1..=3_isize])
            .prop_map(|(axis, start, step)| Step::Slice { axis, start, step }),
        (0..4_usize, 0..4_usize).prop_map(|(a, b)| Step::Swap(a, b)),
        (0..4_usize).prop_map(Step::Reverse),
        (0..4_usize).prop_map(Step::Insert),
        (0..4_usize, 0..4_usize).prop_map(|(axis, len)| Step::Broadcast { axis, len }),
    ]
}

fn apply<'a>(
    mut view: ArrayViewD<'a, u32>,
    base: &'a ArrayD<u32>,
    steps: &[Step],
) -> ArrayViewD<'a, u32> {
    for step in steps {
        let ndim = view.ndim();
        match *step {
            Step::Insert(axis) => view = view.insert_axis(Axis(axis % (ndim + 1))),
            _ if ndim == 0 => {}
            Step::Slice { axis, start, step } => {
                let axis = Axis(axis % ndim);
                let start = start.min(view.len_of(axis));
                view.slice_axis_inplace(axis, Slice::new(start as isize, None, step));
            }
            Step::Swap(a, b) => view.swap_axes(a % ndim, b % ndim),
            Step::Reverse(axis) => view.invert_axis(Axis(axis % ndim)),
            // Only `base` lives long enough to lend a broadcast view, so this step starts again
            // from `base`.
            Step::Broadcast { axis, len } => {
                let mut shape = base.shape().to_vec();
                shape.insert(0, len);
                view = base.broadcast(IxDyn(&shape)).unwrap();
                view.swap_axes(0, axis % shape.len());
            }
        }
    }
    view
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_view_is_written_in_logical_order(
        // Few are larger than a tile.
        shape in prop_oneof![
            15 => prop::collection::vec(0..12_usize, 0..4),
            1 => prop::collection::vec(1..90_usize, 1..4),
        ],
        fortran in any::<bool>(),
        steps in prop::collection::vec(step(), 0..6),
    ) {
        let len: usize = shape.iter().product();
        let base = ArrayD::from_shape_vec(shape.as_slice().set_f(fortran), (0..len as u32).collect()).unwrap();
        check(apply(base.view(), &base, &steps), base.as_slice_memory_order().unwrap());
    }
}

#[test]
fn tiles_that_are_cut_off_and_columns_that_are_no_slices() {
    // Around the side of a tile, also backwards and with gaps.
    for (rows, columns) in [(63, 65), (64, 64), (65, 129), (15, 200), (200, 15), (16, 16), (1, 99)]
    {
        let array = fortran(&counted(&[rows, columns]));
        let memory = array.as_slice_memory_order().unwrap();
        let view = array.view().into_dimensionality::<ndarray::Ix2>().unwrap();
        check(view, memory);
        check(view.slice(s![..;-1, ..]), memory);
        check(view.slice(s![.., ..;-1]), memory);
        check(view.slice(s![..;-2, ..;3]), memory);
    }
}

#[test]
fn elements_of_every_width_are_transposed() {
    fn transposed<T: ArrayElement>(of: impl Fn(usize) -> T) {
        let mut next = 0;
        let array = ArrayD::from_shape_simple_fn(IxDyn(&[130, 70, 3]), || {
            next += 1;
            of(next)
        });
        check(fortran(&array).view(), &[]);
    }
    transposed(|i| i as u8);
    transposed(|i| i % 3 == 0);
    transposed(|i| half::f16::from_f32(i as f32));
    transposed(|i| i as f64);
    transposed(|i| num_complex::Complex::new(i as f32, -1.0));
}

#[test]
fn an_error_of_writing_ends_a_large_save() {
    let array = fortran(&counted(&[3000, 2000]));
    for allowed in [0, 1, 5] {
        let mut pieces = 0;
        let error = array_source(&array).write_to(&mut |_| {
            if pieces == allowed {
                return Err(ErrorKind::Io(io::ErrorKind::StorageFull.into()).into());
            }
            pieces += 1;
            Ok(())
        });
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::Io(_)));
        assert_eq!(pieces, allowed);
    }
}

#[test]
fn a_file_has_the_same_bytes_in_whichever_order_they_are_written() {
    let array = fortran(&counted(&[70, 200, 180]));
    let (_dir, path) = place("u.safetensors");
    let expected = oracle(&array.view());
    // Digests are taken of the bytes in order.
    for options in [SaveOptions::new(), SaveOptions::new().digests(true)] {
        safetensors_core::save(&path, [("u", array_source(&array))], &options).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(SafeTensors::parse(&bytes).unwrap().view("u").unwrap().data() == expected);
        assert!(safetensors_core::Checkpoint::open(&path).unwrap().audit_values().is_ok());
    }
    let writer = safetensors_ndarray::Writer::create(&path).unwrap();
    writer.add("u", &array).unwrap();
    writer.add("v", &array.view().reversed_axes()).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::parse(&bytes).unwrap();
    assert!(file.view("u").unwrap().data() == expected);
    assert!(file.view("v").unwrap().data() == oracle(&array.view().reversed_axes()));
}

/// Fails unless the pieces are `runs` runs of the array's own memory.
fn assert_runs_of(array: &ArrayD<u32>, pieces: &[Range<*const u8>], runs: usize) {
    let memory = bytemuck::cast_slice::<u32, u8>(array.as_slice().unwrap()).as_ptr_range();
    let is_run = |piece: &Range<_>| memory.start <= piece.start && piece.end <= memory.end;
    assert!(!AS_IN_MEMORY || (pieces.len() == runs && pieces.iter().all(is_run)));
}

#[test]
fn long_runs_are_borrowed() {
    // C order is one run.
    let array = counted(&[30, 40]);
    let (bytes, pieces) = collect(&array_source(&array));
    assert_eq!(bytes, oracle(&array.view()));
    assert_runs_of(&array, &pieces, 1);
    // Rows of 80,000 bytes, each followed by 4 bytes that are not part of the view.
    let array = Array3::<u32>::from_shape_fn((3, 4, 20_001), |(i, j, k)| {
        (i * 100_000 + j * 25_000 + k) as u32
    });
    let view = array.slice(s![.., ..;-1, ..20_000]);
    let (bytes, pieces) = collect(&array_source(&view));
    assert!(bytes == oracle(&view));
    assert_runs_of(&array.into_dyn(), &pieces, 12);
    // The three inner axes merge into one run of 160,000 bytes, though the last alone would be too
    // short to borrow.
    let array = counted(&[3, 2, 2, 10_000]);
    let ends = array.slice(s![..;2, .., .., ..]);
    let (bytes, pieces) = collect(&array_source(&ends));
    assert!(bytes == oracle(&ends));
    assert_runs_of(&array, &pieces, 2);
}

#[test]
fn short_runs_are_gathered_into_large_pieces() {
    let array = counted(&[5_000, 100]);
    let view = array.slice(s![.., ..90]);
    let (bytes, pieces) = collect(&array_source(&view));
    assert!(bytes == oracle(&view));
    // 1.8 MB in rows of 360 bytes.
    assert!(!AS_IN_MEMORY || pieces.len() == bytes.len().div_ceil(BUFFER));
}

#[test]
fn a_broadcast_array_larger_than_any_memory_is_written_until_an_error() {
    let pair = array![[1_u8], [2]];
    let huge = pair.broadcast((2, 1 << (usize::BITS - 6))).unwrap();
    let source = array_source(&huge);
    let mut sink = |bytes: &[u8]| {
        assert!(bytes.len() <= 32 << 20 && bytes.iter().all(|&byte| byte == 1));
        Err(ErrorKind::Cancelled.into())
    };
    assert!(matches!(source.write_to(&mut sink).unwrap_err().kind(), ErrorKind::Cancelled));
    let written = source.write_pieces(&mut |_, bytes| sink(bytes));
    assert!(matches!(written.unwrap_err().kind(), ErrorKind::Cancelled));
}

/// Axes of counted arrays, in the order in which they are swapped, larger than the buffer.
const PERMUTED: &[(&[usize], &[usize])] = &[
    // More rows than fit the buffer; sides that are no multiples of a tile.
    (&[333, 1111], &[1, 0]),
    // Fewer than 64 rows fit the largest buffer. The second thread gathers several blocks.
    (&[70, 150_000], &[1, 0]),
    (&[40, 70, 110], &[0, 2, 1]),
    (&[40, 70, 110], &[1, 0, 2]),
    (&[40, 70, 110], &[1, 2, 0]),
    (&[40, 70, 110], &[2, 0, 1]),
    (&[40, 70, 110], &[2, 1, 0]),
    // Narrow planes, and many of them.
    (&[50_000, 2, 3], &[0, 2, 1]),
    (&[50_000, 2, 3], &[2, 1, 0]),
    (&[20, 3, 9_000], &[0, 2, 1]),
    (&[2; 14], &[13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
];

/// For arrays in Fortran order, with rows that are longer than the buffer.
const PERMUTED_FORTRAN: &[(&[usize], &[usize])] = &[
    (&[70, 150_000], &[0, 1]),
    (&[70, 200, 180], &[0, 1, 2]),
    (&[180, 70, 200], &[2, 0, 1]),
    (&[2, 67, 2, 200, 165], &[1, 0, 2, 3, 4]),
];

#[test]
fn permuted_arrays_larger_than_the_buffer() {
    for (shape, axes) in PERMUTED {
        let array = counted(shape);
        check(array.view().permuted_axes(*axes), array.as_slice().unwrap());
    }
}

#[test]
fn fortran_arrays_larger_than_the_buffer() {
    let check_permuted = |(shape, axes): &(&[usize], &[usize])| {
        // As `fortran` makes them, without a copy.
        let array = counted(&shape.iter().rev().copied().collect::<Vec<_>>()).reversed_axes();
        let memory = array.as_slice_memory_order().unwrap();
        check(array.view().permuted_axes(*axes), memory);
        let mut reversed = array.view();
        reversed.invert_axis(Axis(0));
        check(reversed, memory);
    };
    std::thread::scope(|scope| {
        PERMUTED_FORTRAN.iter().for_each(|case| drop(scope.spawn(|| check_permuted(case))));
    });
}

#[test]
fn reversed_and_repeated_arrays_larger_than_the_buffer() {
    // One row alone is larger than the largest buffer.
    let wide = Array2::from_shape_fn((2, WIDE_BUFFER / 8 + 5), |(i, j)| (i * 7 + j) as f64);
    check(wide.slice(s![.., ..;-1]), wide.as_slice().unwrap());
    let array = Array1::from_iter(0..2_500_000_u32);
    check(array.slice(s![..;-1]), array.as_slice().unwrap());
    let bytes = Array2::from_shape_fn((1500, 1501), |(i, j)| (i * 7 + j) as u8);
    check(bytes.slice(s![..;-1, ..;-1]), bytes.as_slice().unwrap());
    check(bytes.slice(s![..;-2, ..;3]).reversed_axes(), bytes.as_slice().unwrap());

    let scalar = ndarray::arr0(0x0102_0304_u32);
    check(scalar.broadcast((3, 200_000)).unwrap(), &[]);
    let row = array.slice(s![..100_000]);
    check(row.broadcast((4, 100_000)).unwrap(), array.as_slice().unwrap());
    check(row.broadcast((4, 100_000)).unwrap().reversed_axes(), array.as_slice().unwrap());
}

#[test]
fn scalars_and_arrays_without_elements() {
    check(ndarray::arr0(true).view(), &[]);
    let cube = Array3::<f64>::zeros((4, 5, 6));
    check(cube.slice(s![.., 2..2, ..;-1]).permuted_axes([2, 0, 1]), &[]);
    check(cube.slice(s![0..0, .., ..]).reversed_axes(), &[]);
    check(Array1::<f64>::zeros(0).broadcast((7, 0)).unwrap().reversed_axes(), &[]);
}
