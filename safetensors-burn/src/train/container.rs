//! burnpack containers in memory: the form in which burn's records give and take their content.
//! `burn_pack` documents the format; only this file knows it.
// They are written here, and not by burn, so that tensors are read from a file into their places.

use std::collections::BTreeMap;

use burn::tensor::{Bytes, DType};
use burn_store::burn_pack::{
    FORMAT_VERSION, HEADER_SIZE, Header, MAGIC_NUMBER, MAX_METADATA_SIZE, MAX_TENSOR_COUNT,
    MAX_TENSOR_SIZE, Scalar, TENSOR_ALIGNMENT, aligned_data_section_start,
};
use safetensors_core::{Dtype, Error, ErrorKind, Result, TensorBuf, shape};
use serde::{Deserialize, Serialize};

use super::EpochError;

/// A container without the bytes of its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) tensors: BTreeMap<String, Described>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) scalars: BTreeMap<String, Scalar>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// The place in the data.
    pub(super) data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) param_id: Option<u64>,
}

impl Described {
    pub(super) fn new(dtype: DType, shape: &[usize], param_id: Option<u64>) -> Self {
        let shape = shape.iter().map(|&len| len as u64).collect();
        Self { dtype, shape, data_offsets: (0, 0), param_id }
    }

    pub(super) fn shape(&self) -> Vec<usize> {
        // A tensor in memory, or one of a file that was checked, has such a shape.
        self.shape.iter().map(|&len| usize::try_from(len).unwrap_or(usize::MAX)).collect()
    }
}

impl Content {
    /// Gives tensors their places, in the order of the names. Returns the part before the data, and
    /// the length of the data.
    pub(super) fn lay_out(&mut self) -> Result<(Vec<u8>, u64)> {
        let mut end = 0_u64;
        for tensor in self.tensors.values_mut() {
            let count = shape::element_count(&tensor.shape())?;
            let len = count.checked_mul(tensor.dtype.size() as u64);
            // burn aligns the tensors of its containers so.
            let start = end.checked_next_multiple_of(TENSOR_ALIGNMENT);
            let place =
                start.zip(len).and_then(|(start, len)| Some((start, start.checked_add(len)?)));
            let overflow = || ErrorKind::ShapeOverflow { shape: tensor.shape() };
            tensor.data_offsets = place.ok_or_else(overflow)?;
            end = tensor.data_offsets.1;
        }
        let mut text = Vec::new();
        ciborium::into_writer(self, &mut text).map_err(|error| malformed(&error))?;
        Ok((text, end))
    }
}

/// Makes a container. `fill` writes each tensor to its [place](Described::data_offsets).
pub(super) fn build(
    content: &mut Content,
    fill: impl FnOnce(&Content, &mut [u8]) -> Result<()>,
) -> Result<Bytes> {
    let (text, end) = content.lay_out()?;
    check_limits(content, text.len())?;
    let metadata_size = u32::try_from(text.len()).map_err(|error| malformed(&error))?;
    let data_start = aligned_data_section_start(text.len());
    let total = usize::try_from(end)
        .ok()
        .and_then(|end| data_start.checked_add(end))
        .ok_or(ErrorKind::TooLargeForMemory { bytes: end })?;

    // Words of 8 bytes are aligned for every element, and burn takes them over without a copy.
    let words = total.div_ceil(size_of::<u64>());
    let container = TensorBuf::filled_by(Dtype::U64, vec![words], |bytes| {
        let header = Header { magic: MAGIC_NUMBER, version: FORMAT_VERSION, metadata_size };
        bytes[..HEADER_SIZE].copy_from_slice(&header.into_bytes());
        bytes[HEADER_SIZE..HEADER_SIZE + text.len()].copy_from_slice(&text);
        fill(content, &mut bytes[data_start..total])
    })?;
    Ok(Bytes::from_elems(container.into_vec::<u64>()?))
}

fn malformed(problem: &dyn std::fmt::Display) -> Error {
    EpochError::Record(problem.to_string()).into()
}

/// Checks a limit of burn's reader.
// burn's writer does not, so an epoch could be saved and never be restored.
pub(super) fn check_count(found: usize) -> Result<()> {
    if found > MAX_TENSOR_COUNT {
        return Err(EpochError::TooManyTensors { found, limit: MAX_TENSOR_COUNT }.into());
    }
    Ok(())
}

/// Checks the other limits of burn's reader. `metadata_len` is the length of the content.
pub(super) fn check_limits(content: &Content, metadata_len: usize) -> Result<()> {
    check_count(content.tensors.len())?;
    let limit = MAX_METADATA_SIZE as usize;
    if metadata_len > limit {
        return Err(EpochError::MetadataTooLarge { found: metadata_len, limit }.into());
    }
    let limit = MAX_TENSOR_SIZE as u64;
    for (name, tensor) in &content.tensors {
        let (start, end) = tensor.data_offsets;
        let found = end.saturating_sub(start);
        if found > limit {
            return Err(Error::from(EpochError::TensorTooLarge { found, limit }).in_tensor(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{BoolStore, DType};
    use burn_store::burn_pack::{Reader, Tensor, Writer};

    use super::super::unpacked::Unpacked;
    use super::*;

    fn tensors() -> Vec<(&'static str, DType, Vec<usize>, Option<u64>)> {
        vec![
            ("7.m", DType::F32, vec![3, 5], Some(7)),
            ("7.v", DType::F64, vec![], None),
            ("a", DType::Bool(BoolStore::U32), vec![9], Some(u64::MAX)),
            ("empty", DType::U8, vec![0, 4], Some(0)),
            ("z", DType::BF16, vec![1000], Some(1)),
        ]
    }

    fn data(name: &str, dtype: DType, shape: &[usize]) -> Vec<u8> {
        let len = shape.iter().product::<usize>() * dtype.size();
        (0..len).map(|i| (i * 31 + name.len()) as u8 & 1).collect()
    }

    fn writer() -> Writer {
        let tensors = tensors().into_iter().map(|(name, dtype, shape, id)| {
            let bytes = Bytes::from_bytes_vec(data(name, dtype, &shape));
            Tensor::new(name.into(), dtype, shape, id, bytes)
        });
        Writer::new(tensors.collect())
            .with_scalar("t", Scalar::Float(0.1))
            .with_scalar("u", Scalar::Int(-1))
            .with_metadata("7", "layer.weight")
    }

    #[test]
    fn a_container_equals_burns() {
        let expected = writer().into_bytes().unwrap();
        let content = Unpacked::of_bytes(writer().into_bytes().unwrap()).unwrap().content;
        let mut made = Content { tensors: BTreeMap::new(), ..content };
        for (name, dtype, shape, id) in tensors() {
            made.tensors.insert(name.into(), Described::new(dtype, &shape, id));
        }
        let found = build(&mut made, |content, memory| {
            for (name, tensor) in &content.tensors {
                let (start, end) = tensor.data_offsets;
                let bytes = data(name, tensor.dtype, &tensor.shape());
                memory[start as usize..end as usize].copy_from_slice(&bytes);
            }
            Ok(())
        });
        let found = found.unwrap();
        assert_eq!(found[..expected.len()], expected[..]);
        // The memory is made of words of 8 bytes.
        assert!(found.len() - expected.len() < 8);
        assert_eq!(Reader::from_bytes(found).unwrap().into_tensors().unwrap().len(), 5);
    }

    fn of_lengths(tensors: impl Iterator<Item = (String, u64)>) -> Content {
        let tensors = tensors.map(|(name, len)| {
            let data_offsets = (7, 7 + len);
            (name, Described { data_offsets, ..Described::new(DType::U8, &[], None) })
        });
        Content { tensors: tensors.collect(), ..Content::default() }
    }

    #[test]
    fn limits_equal_the_reader_of_burn() {
        let many = |count| of_lengths((0..count).map(|i: usize| (i.to_string(), 0)));
        check_limits(&many(MAX_TENSOR_COUNT), 0).unwrap();
        check_limits(&many(MAX_TENSOR_COUNT + 1), 0).unwrap_err();
        let most = MAX_METADATA_SIZE as usize;
        check_limits(&many(1), most).unwrap();
        let error = check_limits(&many(1), most + 1).unwrap_err();
        assert!(error.to_string().contains("104857601 bytes, over burn's limit of"), "{error}");
        let most = MAX_TENSOR_SIZE as u64;
        let one = |len| of_lengths([("a".into(), 1), ("w".into(), len)].into_iter());
        check_limits(&one(most), 0).unwrap();
        let error = check_limits(&one(most + 1), 0).unwrap_err();
        assert_eq!(error.tensor(), Some("w"));
    }

    /// Fails when burn changes its limit.
    #[test]
    fn a_record_with_a_tensor_that_burn_refuses_is_refused() {
        for (len, fits) in [(MAX_TENSOR_SIZE as u64, true), (MAX_TENSOR_SIZE as u64 + 1, false)] {
            let mut text = Vec::new();
            let content = of_lengths([("w".into(), len)].into_iter());
            ciborium::into_writer(&content, &mut text).unwrap();
            let metadata_size = text.len() as u32;
            let header = Header { magic: MAGIC_NUMBER, version: FORMAT_VERSION, metadata_size };
            let bytes = Bytes::from_bytes_vec([&header.into_bytes()[..], &text].concat());
            assert_eq!(check_limits(&content, text.len()).is_ok(), fits);
            // The reader then misses the data of the one that fits.
            let error = Reader::from_bytes(bytes).err().map(|error| error.to_string());
            let refused = error.is_some_and(|text| text.contains("exceeds maximum allowed size"));
            assert_eq!(refused, !fits);
        }
    }

    #[test]
    fn bytes_that_are_no_container_are_errors() {
        let good = writer().into_bytes().unwrap().to_vec();
        let mut version = good.clone();
        version[4] = 2;
        // The record `()` is one byte.
        let cut_off = &good[..good.len() - 1];
        for bad in [&[][..], &[0], &good[1..], &good[..9], &good[..60], cut_off, &version] {
            Unpacked::of_bytes(Bytes::from_bytes_vec(bad.to_vec())).unwrap_err();
        }
    }
}
