//! Rows by their numbers, in any order: of every kind of tensor, from every kind of source,
//! compared with the rows of the whole tensor; their cost; and the errors.
#![allow(unsafe_code, reason = "mapping a file is unsafe")]

use std::io;

use safetensors_core::checkpoint::{Assembled, TensorPiece, WholeTensor};
use safetensors_core::convert::Converted;
use safetensors_core::io::Requests;
use safetensors_core::load::read_slices;
use safetensors_testing::read_at::NotingSource;

use crate::staged::device::Wide;

use crate::support::*;

/// A source behind a network.
fn far(bytes: Vec<u8>) -> NotingSource {
    NotingSource::far(bytes, Requests::new(1 << 20, 4))
}

/// Tensors of many dtypes, of six rows each, and such as have no rows or no elements.
fn tensors() -> Vec<(String, TensorBuf)> {
    let tensor = |dtype: Dtype, shape: &[usize]| {
        let bits = shape.iter().product::<usize>() * dtype.bits() as usize;
        let bytes = (0..bits / 8).map(|i| match dtype {
            Dtype::BOOL => (i % 3 == 1) as u8,
            // Numbers that are small as floats, and as integers.
            _ if i % (dtype.bits() as usize / 8).max(1) > 0 => 0,
            _ => (i * 5 % 113) as u8,
        });
        let bytes: Vec<u8> = bytes.collect();
        let buf = TensorBuf::from_view(&TensorView::new(dtype, shape, &bytes).unwrap()).unwrap();
        (format!("{dtype} {shape:?}"), buf)
    };
    let shapes: [&[usize]; 5] = [&[6, 4], &[6], &[6, 2, 4], &[6, 0], &[0, 4]];
    let all = Dtype::ALL.iter().flat_map(|&dtype| shapes.map(|shape| (dtype, shape)));
    let is_whole = |(dtype, shape): &(Dtype, &[usize])| {
        let row = shape.iter().skip(1).product::<usize>();
        (row * dtype.bits() as usize).is_multiple_of(8)
    };
    all.filter(is_whole).map(|(dtype, shape)| tensor(dtype, shape)).collect()
}

/// Returns the tensors from the disk, mapped, from memory, from far away, as boxed sources, and
/// made of pieces of two files.
fn stores(tensors: &[(String, TensorBuf)]) -> Vec<(&'static str, Checkpoint<Box<dyn ReadAt>>)> {
    let named = || tensors.iter().map(|(name, buf)| (name, buf));
    let bytes = serialize(named(), &SaveOptions::new()).unwrap();
    let (_dir, path) = place("model.safetensors");
    save(&path, named(), &SaveOptions::new().durable(false)).unwrap();
    let from = |source: Box<dyn ReadAt>| Checkpoint::from_source(source, "source").unwrap();
    vec![
        ("disk", Checkpoint::open(&path).unwrap().into_boxed()),
        // SAFETY: nothing changes this file while it is mapped.
        ("mapped", unsafe { Checkpoint::mmap(&path) }.unwrap().into_boxed()),
        ("memory", from(Box::new(bytes.clone()))),
        ("far", from(Box::new(far(bytes)))),
        ("assembled", from(Box::new(assembled(tensors)))),
    ]
}

/// The rows of each tensor, in turns in two files.
fn assembled(tensors: &[(String, TensorBuf)]) -> Assembled<Vec<u8>> {
    let mut files = [Vec::new(), Vec::new()];
    let mut whole = Vec::new();
    for (name, buf) in tensors {
        let (shape, mut pieces) = (buf.shape().to_vec(), Vec::new());
        let all = file_bytes(buf);
        let len = all.len() / shape[0].max(1);
        for (row, bytes) in all.chunks(len.max(1)).enumerate() {
            let mut offsets = vec![0; shape.len()];
            offsets[0] = row;
            let sizes = std::iter::once(1).chain(shape.iter().skip(1).copied()).collect();
            let file = &mut files[row % 2];
            pieces.push(TensorPiece::new(row % 2, file.len() as u64, offsets, sizes));
            file.extend(bytes);
        }
        whole.push(WholeTensor { name: name.clone(), dtype: buf.dtype(), shape, pieces });
    }
    let sources = files.into_iter().map(|file| ("file".into(), file)).collect();
    Assembled::new(sources, whole, &Default::default()).unwrap()
}

/// The bytes in a file of the rows of a tensor that was read whole, one by one.
fn pick(whole: &TensorBuf, numbers: &[usize]) -> Vec<u8> {
    let bytes = file_bytes(whole);
    let len = bytes.len() / whole.shape()[0].max(1);
    numbers.iter().flat_map(|row| &bytes[row * len..][..len]).copied().collect()
}

/// Reads rows in every way, and compares them with the whole tensor's.
fn check<S: ReadAt>(tensor: LazyTensor<'_, S>, numbers: &[usize], options: [&LoadOptions; 2]) {
    let context = format!("{} {numbers:?}", tensor.name());
    let whole = tensor.read().unwrap();
    let expected = pick(&whole, numbers);
    let rows = tensor.rows(numbers).unwrap();
    assert_eq!(rows.shape()[0], numbers.len(), "{context}");
    assert_eq!(rows.shape()[1..], tensor.shape()[1..], "{context}");
    assert_eq!(rows.byte_len(), expected.len() as u64, "{context}");
    let read = rows.read().unwrap();
    assert_eq!((read.dtype(), read.shape()), (tensor.dtype(), rows.shape()), "{context}");
    assert_eq!(file_bytes(&read), expected, "{context}");
    assert_eq!(file_bytes(&rows), expected, "{context}: streamed");

    let slices = [tensor.rows(numbers).unwrap(), tensor.slice((..,)).unwrap(), rows];
    for options in options {
        let whole = tensor.read_with(options).unwrap();
        let read = read_slices(&slices, options).unwrap();
        let [first, all, last] = &read[..] else { panic!("three") };
        assert_eq!(all.bytes(), whole.bytes(), "{context}");
        for read in [&slices[0].read_with(options).unwrap(), first, last] {
            assert_eq!(read.dtype(), whole.dtype(), "{context}");
            assert_eq!(read.shape()[0], numbers.len(), "{context}");
            assert_eq!(read.shape()[1..], whole.shape()[1..], "{context}");
            assert_eq!(file_bytes(read), pick(&whole, numbers), "{context}");
        }
    }
}

#[test]
fn rows_equal_the_whole_tensor_in_every_store_and_for_every_kind() {
    let tensors = tensors();
    assert!(tensors.len() > 90);
    let numbers: [&[usize]; 6] =
        [&[], &[4], &[0, 1, 2, 3, 4, 5], &[5, 4, 3, 2, 1, 0], &[3, 3, 0, 5, 0], &[2, 3, 5, 5, 5]];
    let to_f32 = LoadOptions::new().floats_as(Dtype::F32);
    let widened = LoadOptions::new().for_framework::<Wide>();
    for (store, checkpoint) in stores(&tensors) {
        for (name, _) in &tensors {
            let tensor = checkpoint.tensor(name).unwrap_or_else(|error| panic!("{store}: {error}"));
            let rows = tensor.shape()[0];
            for numbers in numbers.iter().filter(|them| them.iter().all(|row| *row < rows)) {
                check(tensor, numbers, [&to_f32, &widened]);
            }
        }
    }
}

#[test]
fn rows_are_read_into_memory_and_saved_converted() {
    let table = TensorBuf::from_vec(vec![5, 4], (0..20_i32).collect()).unwrap();
    let file = serialize([("t", table)], &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::from_source(file, "file").unwrap();
    let rows = checkpoint.tensor("t").unwrap().rows(&[4, 0, 4]).unwrap();
    let expected = [16, 17, 18, 19, 0, 1, 2, 3, 16, 17, 18, 19];
    let mut read = [0_i32; 12];
    rows.read_into(&mut read).unwrap();
    assert_eq!(read, expected);
    let wide = Converted::new(rows, Dtype::I64, &ConvertOptions::new()).unwrap();
    let file = serialize([("rows", wide)], &SaveOptions::new()).unwrap();
    let saved = Checkpoint::from_source(file, "file").unwrap();
    let saved = saved.tensor("rows").unwrap().read().unwrap().into_vec::<i64>().unwrap();
    assert_eq!(saved, expected.map(i64::from));
}

/// A table as of a model's tokens: 32,000 rows of 256 bytes.
fn embeddings() -> (Vec<u8>, Vec<usize>) {
    let values: Vec<f32> = (0..32_000 * 64).map(|i| i as f32).collect();
    let table = TensorBuf::from_vec(vec![32_000, 64], values).unwrap();
    let numbers = (0..200_usize).map(|i| i.wrapping_mul(2_654_435_761) % 32_000).collect();
    (serialize([("wte", table)], &SaveOptions::new()).unwrap(), numbers)
}

#[test]
fn two_hundred_rows_of_a_table_cost_their_bytes() {
    let (bytes, numbers) = embeddings();
    let source = NotingSource::new(bytes);
    let checkpoint = Checkpoint::from_source(source.clone(), "file").unwrap();
    let table = checkpoint.tensor("wte").unwrap();
    let of_rows = 200 * 256;
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 200);
    source.take_reads();
    table.rows(&numbers).unwrap().read().unwrap();
    let reads = source.take_reads();
    let len: usize = reads.iter().map(|(_, len)| len).sum();
    assert!((of_rows..of_rows * 21 / 20).contains(&len) && reads.len() <= 200, "{len} {reads:?}");
    table.rows(&numbers).unwrap().max_gap(0).read_with(&LoadOptions::new()).unwrap();
    assert_eq!(source.take_len(), of_rows as u64, "not a byte besides");
    // Each row is read once, however often it is wanted, and neighbours are read together.
    let often: Vec<_> = numbers.iter().cycle().take(20_000).copied().collect();
    table.rows(&often).unwrap().max_gap(0).read_with(&LoadOptions::new()).unwrap();
    assert_eq!(source.take_len(), of_rows as u64);
    table.rows(&[7, 5, 6, 4, 5]).unwrap().read().unwrap();
    assert_eq!(source.take_reads().len(), 1);
}

#[test]
fn rows_from_far_away_come_with_one_call() {
    let (bytes, numbers) = embeddings();
    let checkpoint = Checkpoint::from_source(far(bytes), "far").unwrap();
    let table = checkpoint.tensor("wte").unwrap();
    let calls = || table.source().take_calls().len();
    calls();
    table.rows(&numbers).unwrap().read().unwrap();
    assert_eq!(calls(), 1);
    table.rows(&numbers).unwrap().read_with(&LoadOptions::new().all_as(Dtype::BF16)).unwrap();
    assert_eq!(calls(), 1);
    file_bytes(&table.rows(&numbers).unwrap());
    assert_eq!(calls(), 1);
}

/// So many rows that several threads read them, with rows of a piece each, and longer ones.
#[test]
fn large_rows_read_in_parallel_equal_rows_read_alone() {
    for (rows, columns, step) in [(2048, 1024, 3), (6, 700_000, 1)] {
        let values: Vec<u16> = (0..rows * columns).map(|i| (i * 7 + i / columns) as u16).collect();
        let table = TensorBuf::from_vec(vec![rows, columns], values).unwrap();
        let file = serialize([("t", table)], &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::from_source(file, "file").unwrap();
        let table = checkpoint.tensor("t").unwrap();
        let numbers: Vec<_> = (0..rows / step + 2).map(|i| (i * 5 + 3) % rows).rev().collect();
        let slice = table.rows(&numbers).unwrap();
        let expected = pick(&table.read().unwrap(), &numbers);
        assert!(file_bytes(&slice.read().unwrap()) == expected);
        assert!(file_bytes(&slice) == expected);
        for threads in [1, 4] {
            let done = Arc::new(Mutex::new((0, 0)));
            let noted = Arc::clone(&done);
            let options = LoadOptions::new().threads(threads).progress(move |progress| {
                let mut done = noted.lock().unwrap();
                *done = (done.0.max(progress.bytes_done), progress.bytes_total);
                ControlFlow::Continue(())
            });
            assert!(file_bytes(&slice.read_with(&options).unwrap()) == expected);
            let wide = options.clone().all_as(Dtype::U32);
            let converted = slice.read().unwrap().convert(Dtype::U32, &ConvertOptions::new());
            assert!(slice.read_with(&wide).unwrap().bytes() == converted.unwrap().bytes());
            let done = done.lock().unwrap();
            assert_eq!(done.0, done.1);
        }
        let cancel = LoadOptions::new().progress(|_| ControlFlow::Break(()));
        refused!(slice.read_with(&cancel), ErrorKind::Cancelled);
    }
}

#[test]
fn errors_name_the_tensor_and_the_wrong_row() {
    let bytes = [0_u8; 24];
    let ints = [1_i32, 2, 3, 4, 5, -6].map(i32::to_le_bytes).concat();
    let tensors = [
        ("table", TensorView::new(Dtype::U8, &[4, 6], &bytes).unwrap()),
        ("none", TensorView::new(Dtype::U8, &[0, 6], &[]).unwrap()),
        ("scalar", TensorView::new(Dtype::F32, &[], &bytes[..4]).unwrap()),
        ("packed", TensorView::new(Dtype::F4, &[4, 3], &bytes[..6]).unwrap()),
        ("bools", TensorView::new(Dtype::BOOL, &[3, 2], &[0, 1, 0, 1, 7, 0]).unwrap()),
        ("ints", TensorView::new(Dtype::I32, &[3, 2], &ints).unwrap()),
    ];
    let (_dir, path) = place("model.safetensors");
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let refused = |name: &str, numbers: &[usize]| {
        let error = checkpoint.tensor(name).unwrap().rows(numbers).unwrap_err();
        assert_eq!(error.tensor(), Some(name));
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        error
    };
    let error = refused("table", &[3, 4, 9]);
    let out = ErrorKind::IndexOutOfBounds { dim: 0, len: 4, asked: "4".into() };
    assert!(error.to_string().ends_with(&out.to_string()), "{error}");
    let error = refused("table", &[usize::MAX]);
    assert!(error.to_string().ends_with(&format!("asked for {}", usize::MAX)), "{error}");
    assert!(matches!(refused("none", &[0]).kind(), ErrorKind::IndexOutOfBounds { len: 0, .. }));
    for numbers in [&[][..], &[0]] {
        let error = refused("scalar", numbers);
        assert!(matches!(error.kind(), ErrorKind::NoSuchDim { dim: 0, ndim: 0 }), "{error}");
    }
    let error = refused("packed", &[0, 1]);
    assert!(matches!(error.kind(), ErrorKind::SliceInsideByte { dtype: Dtype::F4 }), "{error}");
    assert_eq!(checkpoint.tensor("packed").unwrap().rows(&[]).unwrap().shape(), [0, 3]);

    // An element is counted among the rows as they are wanted.
    let rows = |name: &str| checkpoint.tensor(name).unwrap().rows(&[2, 0, 2]).unwrap();
    let to_u8 = LoadOptions::new().all_as(Dtype::U8);
    for read in [rows("bools").read(), rows("bools").read_with(&to_u8)] {
        let error = read.unwrap_err();
        let expected = ErrorKind::InvalidBool { index: 0, found: 7 };
        assert!(error.to_string().ends_with(&expected.to_string()), "{error}");
    }
    refused!(rows("ints").read_with(&to_u8), ErrorKind::DoesNotFit { index: 1, .. });
    let narrow = Converted::new(rows("ints"), Dtype::U8, &ConvertOptions::new()).unwrap();
    let error = narrow.write_to(&mut |_| Ok(()));
    assert!(matches!(error.unwrap_err().kind(), ErrorKind::DoesNotFit { index: 1, .. }));
}

/// A header, and more bytes of data than fit any memory.
#[derive(Debug)]
struct Vast(Vec<u8>, u64);

impl Vast {
    fn new(json: &str, data: u64) -> Self {
        Self([&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat(), data)
    }
}

impl ReadAt for Vast {
    fn byte_len(&self) -> u64 {
        self.0.byte_len() + self.1
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.0.read_exact_at(buf, offset).is_err() {
            buf.fill(offset as u8);
        }
        Ok(())
    }
}

/// Where addresses have 32 bits, too.
#[test]
fn slices_read_beyond_4_gib() {
    let (wide, all) = (1_u64 << 31, 3 << 31);
    let json = format!(r#"{{"t":{{"dtype":"U8","shape":[3,{wide}],"data_offsets":[0,{all}]}},"#)
        + &format!(r#""s":{{"dtype":"U8","shape":[2],"data_offsets":[{all},{}]}}}}"#, all + 2);
    let checkpoint = Checkpoint::from_source(Vast::new(&json, all + 2), "vast").unwrap();
    let (tensor, small) = (checkpoint.tensor("t").unwrap(), checkpoint.tensor("s").unwrap());
    let end = 1_usize << 31;
    let last = tensor.slice((2.., end - 4..)).unwrap().read().unwrap();
    let byte = |at: u64| (tensor.file_offset() + at) as u8;
    assert_eq!((last.shape(), last.bytes()), (&[1, 4][..], &[byte(all - 4); 4][..]));
    assert_eq!(small.read().unwrap().bytes(), [byte(all); 2]);
    #[cfg(target_pointer_width = "32")]
    for error in [tensor.read().unwrap_err(), tensor.rows(&[2]).unwrap().read().unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::TooLargeForMemory { .. }), "{error}");
    }
}

#[cfg(target_pointer_width = "64")]
#[test]
fn rows_of_a_vast_tensor_are_read_or_refused_and_never_overflow() {
    let json = format!(
        r#"{{"t":{{"dtype":"U8","shape":[8,{}],"data_offsets":[0,{}]}},"#,
        1_u64 << 57,
        1_u64 << 60
    ) + &format!(
        r#""u":{{"dtype":"U8","shape":[{},2],"data_offsets":[{},{}]}}}}"#,
        1_u64 << 59,
        1_u64 << 60,
        1_u64 << 61
    );
    let checkpoint = Checkpoint::from_source(Vast::new(&json, 1 << 61), "vast").unwrap();
    let (wide, long) = (checkpoint.tensor("t").unwrap(), checkpoint.tensor("u").unwrap());
    // 2⁷ rows of 2⁵⁷ bytes are more than 64 bits count.
    let error = wide.rows(&[7; 128]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeOverflow { .. }), "{error}");
    refused!(wide.rows(&[7, 0]).unwrap().read(), ErrorKind::TooLargeForMemory { .. });
    let last = (1 << 59) - 1;
    let rows = long.rows(&[last, 0, last]).unwrap();
    let row = |number: usize| [(long.file_offset() + 2 * number as u64) as u8; 2];
    let expected = [row(last), row(0), row(last)].concat();
    assert_eq!(rows.read().unwrap().bytes(), expected);
    assert_eq!(rows.read_with(&LoadOptions::new()).unwrap().bytes(), expected);
}
