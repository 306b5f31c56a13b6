//! Every written tensor comes back, and arrays in any layout are read correctly.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Seek, SeekFrom, Write};

use crate::support::{self, given, open, open_npy};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use safetensors_core::{Dtype, TensorBuf, TensorSource, TensorView, shape};
use safetensors_formats::ErrorKind;
use safetensors_formats::npy::{self, ByteOrder, Header, Order};
use safetensors_formats::npz::{Compression, Writer};
use safetensors_testing::tensors::{broken, bytes_by};

/// Failures are to be written down as tests, not as separate files.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

const DTYPES: [Dtype; 13] = [
    Dtype::BOOL,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::U32,
    Dtype::I32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::C64,
];

/// A dtype that NumPy has, a shape of few elements, and bytes for it.
fn tensor() -> impl Strategy<Value = (Dtype, Vec<usize>, Vec<u8>)> {
    (select(&DTYPES[..]), vec(0..7_usize, 0..5)).prop_flat_map(|(dtype, shape)| {
        let len = shape::byte_len(dtype, &shape).unwrap() as usize;
        let bytes = if dtype == Dtype::BOOL { vec(0..=1_u8, len) } else { vec(0..=255_u8, len) };
        (Just(dtype), Just(shape), bytes)
    })
}

/// Returns the bytes of elements in C order, as a file in another layout has them: element by
/// element.
fn laid_out(dtype: Dtype, shape: &[usize], bytes: &[u8], header: &Header) -> Vec<u8> {
    let width = dtype.bits() as usize / 8;
    let mut stored = vec![0; bytes.len()];
    for (i, element) in bytes.chunks_exact(width).enumerate() {
        let (mut rest, mut place) = (i, 0);
        let mut indices = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            indices[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        for axis in (0..shape.len()).rev() {
            place = place * shape[axis] + indices[axis];
        }
        let place = if header.order == Order::Fortran { place } else { i };
        let target = &mut stored[place * width..(place + 1) * width];
        target.copy_from_slice(element);
        if header.byte_order == ByteOrder::Big {
            target.chunks_exact_mut(dtype.alignment()).for_each(<[u8]>::reverse);
        }
    }
    stored
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn arrays_of_any_layout_are_read_correctly(
        (dtype, shape, bytes) in tensor(), fortran: bool, big: bool, deflated: bool
    ) {
        let order = if fortran { Order::Fortran } else { Order::C };
        let byte_order = if big { ByteOrder::Big } else { ByteOrder::Little };
        let header = Header { order, byte_order, ..Header::new(dtype, &shape) };
        let stored = laid_out(dtype, &shape, &bytes, &header);
        let file = [header.encode().unwrap(), stored].concat();
        let array = open_npy(file.clone()).unwrap();
        prop_assert_eq!(&given(&array).unwrap().0, &bytes);
        prop_assert_eq!((array.dtype(), array.shape()), (dtype, &shape[..]));

        let methods = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated];
        let method = methods[usize::from(deflated)];
        let archive = open(support::zip(method, &[("a.npy", &file)])).unwrap();
        let member = archive.array("a").unwrap();
        prop_assert_eq!(&given(&member).unwrap().0, &bytes);
        prop_assert_eq!(member.header(), array.header());
    }

    #[test]
    fn written_archives_are_read_back(
        tensors in btree_map("\\PC{0,12}|[ -~]{0,8}|[/.\\\\:\0\n]{1,3}", tensor(), 0..6),
        deflated: bool
    ) {
        let compression = if deflated { Compression::Deflated } else { Compression::Stored };
        let mut writer = Writer::new(Cursor::new(Vec::new())).compression(compression);
        for (name, (dtype, shape, bytes)) in &tensors {
            let view = TensorView::new(*dtype, shape, bytes).unwrap();
            writer.add(name, &view).unwrap();
            let mut file = Vec::new();
            npy::write(&mut file, &view).unwrap();
            prop_assert_eq!(&given(&open_npy(file).unwrap()).unwrap().0, bytes);
        }
        let archive = open(writer.finish().unwrap().into_inner()).unwrap();
        archive.check().unwrap();
        prop_assert!(archive.names().eq(tensors.keys()));
        prop_assert_eq!(archive.names().len(), tensors.len());
        for (name, (dtype, shape, bytes)) in &tensors {
            let array = archive.array(name).unwrap();
            prop_assert_eq!((array.name(), array.dtype()), (name.as_str(), *dtype));
            prop_assert_eq!((array.shape(), given(&array).unwrap().0), (&shape[..], bytes.clone()));
        }
    }
}

#[test]
fn an_archive_holds_many_members_found_by_name() {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    let names: BTreeMap<_, _> =
        (0..3000_u32).map(|i| (i, format!("t{}", i * 7919 % 3000))).collect();
    for (i, name) in &names {
        writer.add(name, &TensorBuf::from_vec(vec![], vec![*i]).unwrap()).unwrap();
    }
    let archive = open(writer.finish().unwrap().into_inner()).unwrap();
    assert!(archive.names().eq(names.values()));
    for (i, name) in &names {
        assert_eq!(archive.array(name).unwrap().read().unwrap().into_vec::<u32>().unwrap(), [*i]);
    }
    for missing in ["", "t", "t3000", "t1.npy", "u"] {
        let error = archive.array(missing).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::NoSuchArray)));
        let expected = format!("in.npz: tensor {missing:?}: the archive has no such array");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    assert!(archive.array_at(3000).is_err());
}

#[test]
fn the_error_of_a_missing_array_suggests_similar_names() {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for name in ["wind.velocity", "pressure"] {
        writer.add(name, &TensorBuf::from_vec(vec![], vec![1_u8]).unwrap()).unwrap();
    }
    let archive = open(writer.finish().unwrap().into_inner()).unwrap();
    for (asked, meant) in [("wind.velocty", "wind.velocity"), ("velocity", "wind.velocity")] {
        let error = archive.array(asked).unwrap_err();
        let expected = format!(
            "in.npz: tensor {asked:?}: the archive has no such array; did you mean {meant:?}?"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_tensor_that_fails_ends_the_archive() {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    writer.add("a", &TensorBuf::from_vec(vec![], vec![1_u8]).unwrap()).unwrap();
    let breaking = bytes_by(100, |sink| {
        sink(&[1; 50])?;
        Err(broken("the disk is on fire").in_file("w.bin"))
    });
    let error = writer.add("b", &breaking).unwrap_err();
    assert_eq!(error.to_string(), "w.bin: tensor \"b\": the disk is on fire");
    let error = writer.finish().unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::WriterFailed)), "{error}");
}

#[test]
fn a_failed_write_leaves_the_archive_unchanged() {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    let one = TensorBuf::from_vec(vec![], vec![1_u8]).unwrap();
    writer.add("a", &one).unwrap();
    let bf16 = TensorView::new(Dtype::BF16, &[], &[0, 0]).unwrap();
    let error = writer.add("b", &bf16).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"b\": NumPy has no type for BF16");
    let error = writer.add("a", &one).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"a\": duplicate tensor name");
    let long = "x".repeat(70_000);
    let error = writer.add(&long, &one).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::BadArchive { .. })), "{error}");
    assert_eq!(error.tensor(), Some(long.as_str()));
    writer.add("c", &one).unwrap();
    let archive = open(writer.finish().unwrap().into_inner()).unwrap();
    assert!(archive.names().eq(["a", "c"]));
    archive.arrays().for_each(|array| assert_eq!(array.unwrap().read().unwrap().bytes(), [1]));
}

/// Takes this many bytes, and counts them.
struct Full<'a>(&'a mut Cursor<Vec<u8>>, usize);

impl Write for Full<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.0.position() as usize + buf.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Full<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_full_disk_is_an_error_wherever_it_is_full() {
    let write = |out: &mut Cursor<Vec<u8>>, room| {
        let mut writer = Writer::new(Full(out, room));
        for name in ["a", "b"] {
            writer.add(name, &TensorBuf::from_vec(vec![100], vec![7_u8; 100]).unwrap())?;
        }
        writer.finish().map(drop)
    };
    let mut whole = Cursor::new(Vec::new());
    write(&mut whole, usize::MAX).unwrap();
    let whole = whole.into_inner();
    for room in 0..whole.len() {
        let error = write(&mut Cursor::new(Vec::new()), room).unwrap_err();
        let safetensors_core::ErrorKind::Io(error) = error.kind() else {
            panic!("{room}: {error}")
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    assert!(write(&mut Cursor::new(Vec::new()), whole.len()).is_ok());
}

#[test]
fn an_abandoned_archive_has_no_directory_at_its_end() {
    let mut out = Cursor::new(Vec::new());
    let mut writer = Writer::new(&mut out);
    writer.add("a", &TensorBuf::from_vec(vec![3], vec![1_u8, 2, 3]).unwrap()).unwrap();
    drop(writer);
    let written = out.into_inner();
    assert!(written.len() > 100, "{}", written.len());
    assert!(!written.windows(4).any(|four| four == b"PK\x05\x06"));
    assert!(open(written).is_err());
}
