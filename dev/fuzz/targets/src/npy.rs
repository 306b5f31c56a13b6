//! NumPy's files: any bytes as a file, any text as a header, and our own archives, also damaged.

use std::io::Cursor;

use safetensors_core::{
    Dtype, ErrorKind as CoreKind, SafeTensors, SaveOptions, TensorSource, serialize,
};
use safetensors_formats::npy::{Array, ByteOrder, Header, Order};
use safetensors_formats::{Error, Limits, npy, npz};

use crate::input::Input;
use crate::tensors::{self, Tensor};

/// The most bytes of an array that are read.
const MOST: u64 = 1 << 16;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.below(4) {
        0 => of_npy(input.rest()),
        1 => of_header(input.rest()),
        2 => of_npz(input.rest()),
        _ => of_own_archive(&mut input),
    }
}

/// Opens the input as a `.npy` file.
fn of_npy(file: &[u8]) {
    match Array::from_source(file.to_vec(), "a.npy", &Limits::default()) {
        Ok(array) => {
            let data = &file[file.len() - array.header().data_len().unwrap() as usize..];
            is_as_in_file(&array, data);
        }
        Err(error) => can_be_shown(&error),
    }
}

/// Opens the input as the text of a header, followed by the bytes that it asks for.
fn of_header(text: &[u8]) {
    let mut file = b"\x93NUMPY\x02\x00".to_vec();
    file.extend((text.len() as u32).to_le_bytes());
    file.extend_from_slice(text);
    match Header::read(&mut &file[..], &Limits::default()) {
        Ok(header) => {
            let again = header.encode().unwrap();
            let again = Header::read(&mut &again[..], &Limits::default()).unwrap();
            // One-byte numbers have no byte order.
            let order = |header: &Header| (header.dtype.bits() > 8).then_some(header.byte_order);
            assert_eq!((again.dtype, again.order), (header.dtype, header.order));
            assert_eq!((&again.shape, order(&again)), (&header.shape, order(&header)));
            if let Ok(len) = header.data_len()
                && len <= MOST
            {
                let ones = header.dtype == Dtype::BOOL;
                file.extend((0..len).map(|i| if ones { i as u8 & 1 } else { i as u8 }));
                of_npy(&file);
            }
        }
        Err(error) => can_be_shown(&error),
    }
}

/// An array is read as its header says, in pieces too.
fn is_as_in_file(array: &Array, data: &[u8]) {
    if data.len() as u64 > MOST {
        return;
    }
    let expected = in_c_order(array.header(), data);
    let is_bool = array.dtype() == Dtype::BOOL && expected.iter().any(|&byte| byte > 1);
    match (array.read(), serialize([("t", array)], &SaveOptions::new())) {
        (Ok(read), Ok(saved)) => {
            assert!(!is_bool);
            assert_eq!((read.dtype(), read.shape()), (array.dtype(), array.shape()));
            assert_eq!(read.bytes(), expected);
            let saved = SafeTensors::parse(saved).unwrap();
            assert_eq!(saved.view("t").unwrap().data(), expected);
        }
        (Err(read), Err(_)) => {
            let is_invalid = matches!(read.kind(), CoreKind::InvalidBool { .. });
            assert!(is_bool && is_invalid, "{read}");
        }
        (read, saved) => panic!("{read:?}, {saved:?}"),
    }
}

/// Returns the elements of an array in C order and little-endian, moved one by one.
fn in_c_order(header: &Header, data: &[u8]) -> Vec<u8> {
    // A complex number is two numbers, each in the file's order of bytes.
    let (width, word) = match header.dtype {
        Dtype::C64 => (8, 4),
        dtype => (dtype.bits() as usize / 8, dtype.bits() as usize / 8),
    };
    let shape = &header.shape;
    let count = data.len() / width;
    let mut out = Vec::with_capacity(data.len());
    for mut position in 0..count {
        let mut place = position;
        if header.order == Order::Fortran {
            // From the last index, which changes first in C order, to the first.
            place = 0;
            for (dim, &len) in shape.iter().enumerate().rev() {
                let stride: usize = shape[..dim].iter().product();
                place += position % len * stride;
                position /= len;
            }
        }
        let element = &data[place * width..][..width];
        for word in element.chunks(word) {
            match header.byte_order {
                ByteOrder::Little => out.extend_from_slice(word),
                ByteOrder::Big => out.extend(word.iter().rev()),
            }
        }
    }
    out
}

/// Opens the input as an archive, and reads its content as far as possible.
fn of_npz(file: &[u8]) {
    let archive = match npz::Archive::from_source(file.to_vec(), "a.npz", &Limits::default()) {
        Ok(archive) => archive,
        Err(error) => return can_be_shown(&error),
    };
    assert_eq!(archive.names().len(), archive.arrays().len());
    if let Err(error) = archive.check() {
        can_be_shown(&error);
    }
    for array in archive.arrays() {
        let read = array.and_then(|array| {
            let len = array.header().data_len()?;
            if len > MOST {
                Ok((array, None))
            } else {
                array.read().map(|read| (array, Some(read)))
            }
        });
        match read {
            Ok((array, Some(read))) => {
                assert_eq!((read.dtype(), read.shape()), (array.dtype(), array.shape()));
            }
            Ok((_, None)) => {}
            Err(error) => can_be_shown(&error),
        }
    }
}

/// An archive of tensors is read as it was written, and without a panic if it is damaged.
fn of_own_archive(input: &mut Input<'_>) {
    let method = if input.flag() { npz::Compression::Deflated } else { npz::Compression::Stored };
    let mut tensors = tensors::some(input, 5);
    // Only distinct names, and types that NumPy has.
    tensors.retain(|tensor| Header::new(tensor.dtype, &tensor.shape).encode().is_ok());
    let mut names = std::collections::HashSet::new();
    tensors.retain(|tensor| names.insert(tensor.name.clone()));
    for tensor in tensors.iter_mut().filter(|tensor| tensor.dtype == Dtype::BOOL) {
        tensor.data.iter_mut().for_each(|byte| *byte &= 1);
    }

    let mut writer = npz::Writer::new(Cursor::new(Vec::new())).compression(method);
    let mut written: Vec<&Tensor> = Vec::new();
    for tensor in &tensors {
        match writer.add(&tensor.name, &tensor.view()) {
            Ok(()) => written.push(tensor),
            // A name that no archive can have.
            Err(error) => can_be_shown(&error),
        }
        let mut file = Vec::new();
        npy::write(&mut file, &tensor.view()).unwrap();
        let array = Array::from_source(file, "a.npy", &Limits::default()).unwrap();
        assert_eq!(array.read().unwrap().bytes(), tensor.data);
    }
    let mut file = writer.finish().unwrap().into_inner();
    let archive = npz::Archive::from_source(file.clone(), "a.npz", &Limits::default()).unwrap();
    assert!(archive.names().eq(written.iter().map(|tensor| &tensor.name)));
    archive.check().unwrap();
    for tensor in written {
        let array = archive.array(&tensor.name).unwrap();
        assert_eq!((array.dtype(), array.shape()), (tensor.dtype, &tensor.shape[..]));
        assert_eq!(array.read().unwrap().bytes(), tensor.data);
    }

    for _ in 0..input.below(4) {
        let at = input.u64() as usize % file.len();
        file[at] ^= input.byte();
    }
    if input.below(8) == 7 {
        file.truncate(input.u64() as usize % (file.len() + 1));
    }
    of_npz(&file);
}

/// An error names no control characters, and is not long.
fn can_be_shown(error: &Error) {
    let message = error.to_string();
    assert!(!message.chars().any(char::is_control), "{message:?}");
    assert!(message.len() < 4096, "{message}");
}
