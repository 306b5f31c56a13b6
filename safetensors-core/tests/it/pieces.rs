//! Reading a tensor piece by piece.

use safetensors_core::checkpoint::Assembled;
use safetensors_core::load::Piece;

use crate::support::*;

/// More elements than a piece has, and not a multiple of that number.
const ELEMENTS: usize = (1 << 19) + 12;

fn saved(path: &Path, dtype: Dtype, data: &[u8]) -> Checkpoint {
    let view = TensorView::new(dtype, &[2, ELEMENTS / 2], data).unwrap();
    save(path, [("before", view), ("w", view)], &SaveOptions::new().durable(false)).unwrap();
    Checkpoint::open(path).unwrap()
}

fn read_bytes(piece: &Piece<'_, Assembled>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; piece.byte_len() as usize];
    piece.read_bytes_into(&mut bytes).map(|()| bytes)
}

#[test]
fn pieces_are_the_tensor_whatever_its_dtype() {
    let dir = tempdir().unwrap();
    for dtype in [Dtype::U8, Dtype::F4, Dtype::F6_E2M3, Dtype::BF16, Dtype::F64, Dtype::C64] {
        let bytes = ELEMENTS * dtype.bits() as usize / 8;
        let data = repeated(bytes, 251 << 8, |i| (i * 31 + i / 251) as u8);
        let checkpoint = saved(&dir.path().join("model.safetensors"), dtype, &data);
        let tensor = checkpoint.tensor("w").unwrap();
        assert_eq!(tensor.element_count(), ELEMENTS as u64);
        let bytes: Vec<_> = tensor.pieces().map(|piece| read_bytes(&piece).unwrap()).collect();
        assert!(bytes.concat() == data, "{dtype}");
        let places = |(start, len)| (start, len, len * u64::from(dtype.bits()) / 8);
        let expected = [(0, 1 << 18), (1 << 18, 1 << 18), (1 << 19, 12)].map(places);
        let found: Vec<_> =
            tensor.pieces().map(|p| (p.start(), p.element_count(), p.byte_len())).collect();
        assert_eq!(found, expected, "{dtype}");
        let pieces =
            tensor.pieces().map(|piece| piece.read()).collect::<Result<Vec<_>, _>>().unwrap();
        let shapes: Vec<_> = pieces.iter().map(|piece| piece.shape().to_vec()).collect();
        assert_eq!(shapes, [[1 << 18], [1 << 18], [12]], "{dtype}");
        assert!(
            pieces.iter().all(|piece| piece.dtype() == dtype && piece.bytes().len() <= 2 << 20)
        );
        let whole: Vec<_> = pieces.iter().map(|piece| file_bytes(piece)).collect();
        assert!(whole.concat() == data, "{dtype}");
    }
}

#[test]
fn an_empty_tensor_has_no_pieces_and_a_scalar_has_one() {
    let (_dir, path) = place("model.safetensors");
    let none = TensorView::new(Dtype::F32, &[3, 0], &[]).unwrap();
    let seven = 7_i64.to_le_bytes();
    let scalar = TensorView::new(Dtype::I64, &[], &seven).unwrap();
    save(&path, [("none", none), ("scalar", scalar)], &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let (none, scalar) = (checkpoint.tensor("none").unwrap(), checkpoint.tensor("scalar").unwrap());
    assert_eq!((none.element_count(), none.pieces().count()), (0, 0));
    let pieces = scalar.pieces().map(|piece| piece.read()).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(
        (scalar.element_count(), pieces.len(), pieces[0].as_slice::<i64>().unwrap()),
        (1, 1, &[7][..])
    );
}

#[test]
fn the_index_of_an_invalid_bool_counts_from_the_start_of_the_tensor() {
    let dir = tempdir().unwrap();
    let mut data = vec![1_u8; ELEMENTS];
    data[300_000] = 9;
    let path = dir.path().join("model.safetensors");
    let view = TensorView::new(Dtype::U8, &[ELEMENTS], &data).unwrap();
    save(&path, [("w", view)], &SaveOptions::new().durable(false)).unwrap();
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|text| text == br#""U8""#).unwrap();
    let mut file = bytes[..at].to_vec();
    file.extend(br#""BOOL""#);
    file.extend(&bytes[at + 4..]);
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) + 2;
    file[..8].copy_from_slice(&length.to_le_bytes());
    fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut pieces = checkpoint.tensor("w").unwrap().pieces();
    pieces.next().unwrap().read().unwrap();
    let second = pieces.next().unwrap();
    assert_eq!(read_bytes(&second).unwrap()[300_000 - (1 << 18)], 9);
    let error = refused!(second.read(), ErrorKind::InvalidBool { index: 300_000, found: 9 });
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
}
