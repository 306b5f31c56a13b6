//! burnpack containers in memory: the form in which burn's records give and take their content.
//!
//! Records hide their tensors. `Checkpoint::checkpoint_into_bytes` makes a container of one, and
//! `checkpoint_from_bytes` makes a record of a container. The format is documented in `burn_pack`.
//! This is the only file that knows it.

use std::collections::BTreeMap;

use burn::tensor::{Bytes, DType};
use burn_store::burn_pack::{
    FORMAT_VERSION, HEADER_SIZE, Header, MAGIC_NUMBER, MAX_TENSOR_COUNT, Scalar, TENSOR_ALIGNMENT,
    aligned_data_section_start,
};
use safetensors_core::{Dtype, Error, ErrorKind, Result, TensorBuf, shape};
use serde::{Deserialize, Serialize};

use super::EpochError;

/// What a container has besides the bytes of its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) tensors: BTreeMap<String, Described>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) scalars: BTreeMap<String, Scalar>,
}

/// A tensor of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// Where its bytes begin and end, counted from the start of the data.
    pub(super) data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) param_id: Option<u64>,
}

impl Described {
    /// A tensor whose place is not decided yet.
    pub(super) fn new(dtype: DType, shape: &[usize], param_id: Option<u64>) -> Self {
        let shape = shape.iter().map(|&len| len as u64).collect();
        Self { dtype, shape, data_offsets: (0, 0), param_id }
    }

    pub(super) fn shape(&self) -> Vec<usize> {
        // A tensor in memory, or one of a file that was checked, has such a shape.
        self.shape.iter().map(|&len| usize::try_from(len).unwrap_or(usize::MAX)).collect()
    }
}

/// A container that a record was turned into.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) content: Content,
    bytes: Bytes,
    data_start: usize,
}

impl Container {
    /// Parses the bytes of a record.
    ///
    /// # Errors
    ///
    /// [`EpochError::TooManyTensors`]; [`EpochError::Record`] if the bytes are no container.
    pub(super) fn parse(bytes: Bytes) -> Result<Self> {
        let header = Header::from_bytes(&bytes).map_err(|error| malformed(&error))?;
        if header.version != FORMAT_VERSION {
            let found = header.version;
            let text = format!("expected version {FORMAT_VERSION} of burnpack, found {found}");
            return Err(malformed(&text));
        }
        let metadata_len = header.metadata_size as usize;
        let text = bytes.get(HEADER_SIZE..).and_then(|rest| rest.get(..metadata_len));
        let text = text.ok_or_else(|| malformed(&"its metadata is cut off"))?;
        let content: Content = ciborium::from_reader(text).map_err(|error| malformed(&error))?;
        check_count(content.tensors.len())?;
        // Views of shared bytes copy nothing.
        let data_start = aligned_data_section_start(metadata_len);
        Ok(Self { content, bytes: bytes.shared(), data_start })
    }

    /// The bytes of a tensor. They are shared, not copied.
    pub(super) fn data(&self, tensor: &Described) -> Result<Bytes> {
        let (start, end) = tensor.data_offsets;
        let place = |offset| self.data_start.checked_add(usize::try_from(offset).ok()?);
        let place = place(start).zip(place(end)).filter(|(start, end)| start <= end);
        let view = place.and_then(|(start, end)| self.bytes.view(start, end).ok());
        view.ok_or_else(|| malformed(&"the data of a tensor is cut off"))
    }
}

/// Makes a container of this content. `fill` gets the memory of all data, and writes each tensor to
/// its place, which [`Described::data_offsets`] has.
///
/// # Errors
///
/// Those of `fill`; [`EpochError::TooManyTensors`]; [`ErrorKind::ShapeOverflow`] and
/// [`ErrorKind::TooLargeForMemory`], which no content of a real record causes.
pub(super) fn build(
    mut content: Content,
    fill: impl FnOnce(&Content, &mut [u8]) -> Result<()>,
) -> Result<Bytes> {
    check_count(content.tensors.len())?;
    let mut end = 0_u64;
    for tensor in content.tensors.values_mut() {
        let count = shape::element_count(&tensor.shape())?;
        let place = || {
            let start = end.checked_next_multiple_of(TENSOR_ALIGNMENT)?;
            let len = count.checked_mul(tensor.dtype.size() as u64)?;
            Some((start, start.checked_add(len)?))
        };
        let place = place().ok_or_else(|| ErrorKind::ShapeOverflow { shape: tensor.shape() })?;
        tensor.data_offsets = place;
        end = place.1;
    }
    let mut text = Vec::new();
    ciborium::into_writer(&content, &mut text).map_err(|error| malformed(&error))?;
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
        fill(&content, &mut bytes[data_start..total])
    })?;
    Ok(Bytes::from_elems(container.into_vec::<u64>()?))
}

fn malformed(problem: &dyn std::fmt::Display) -> Error {
    EpochError::Record(problem.to_string()).into()
}

fn check_count(found: usize) -> Result<()> {
    if found > MAX_TENSOR_COUNT {
        return Err(EpochError::TooManyTensors { found, limit: MAX_TENSOR_COUNT }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::BoolStore;
    use burn_store::burn_pack::{Reader, Tensor, Writer};

    use super::*;

    /// Tensors in the order of their names, which is the order of their data.
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

    /// The same bytes as burn's own writer makes.
    #[test]
    fn a_container_is_that_of_burn() {
        let expected = writer().into_bytes().unwrap();
        let content = Container::parse(writer().into_bytes().unwrap()).unwrap().content;
        let mut made = Content { tensors: BTreeMap::new(), ..content };
        for (name, dtype, shape, id) in tensors() {
            made.tensors.insert(name.into(), Described::new(dtype, &shape, id));
        }
        let found = build(made, |content, memory| {
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

    #[test]
    fn a_container_is_parsed() {
        let container = Container::parse(writer().into_bytes().unwrap()).unwrap();
        for (name, dtype, shape, id) in tensors() {
            let tensor = &container.content.tensors[name];
            assert_eq!((tensor.dtype, tensor.shape(), tensor.param_id), (dtype, shape.clone(), id));
            assert_eq!(container.data(tensor).unwrap()[..], data(name, dtype, &shape));
        }
        assert_eq!(container.content.scalars["u"], Scalar::Int(-1));
        assert_eq!(container.content.metadata["7"], "layer.weight");
    }

    #[test]
    fn the_most_tensors_are_those_that_burn_restores() {
        check_count(MAX_TENSOR_COUNT).unwrap();
        check_count(MAX_TENSOR_COUNT + 1).unwrap_err();
    }

    #[test]
    fn bytes_that_are_no_container_are_errors() {
        let good = writer().into_bytes().unwrap().to_vec();
        let mut version = good.clone();
        version[4] = 2;
        // The record `()` is one byte.
        for bad in [&[][..], &[0], &good[1..], &good[..9], &good[..60], &version] {
            Container::parse(Bytes::from_bytes_vec(bad.to_vec())).unwrap_err();
        }
        let data_start = good.len() - 2100;
        let container = Container::parse(Bytes::from_bytes_vec(good[..data_start].to_vec()));
        let container = container.unwrap();
        container.data(&container.content.tensors["z"]).unwrap_err();
    }
}
