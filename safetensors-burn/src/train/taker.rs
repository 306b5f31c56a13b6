//! [`Taker`]: unpacks the record of a module, tensor by tensor.
// burn's bytes of a record copy all tensors twice. But burn moves tensors into a module that loads
// the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{DTypePolicy, ModuleRecord};
use burn::tensor::kind::Basic;
use burn::tensor::{Bytes, DType, Device, Float, Int, Tensor, TensorData};
use safetensors_core::Result;

use super::container::Content;
use super::error::of_record;
use super::unpacked::{TakenTensor, Unpacked};

/// A module with parameters without values.
#[derive(Clone, Debug)]
pub(super) struct Taker {
    /// burn gives a tensor only for its name and shape.
    shapes: Arc<BTreeMap<String, Vec<usize>>>,
    device: Device,
    taken: Vec<TakenTensor>,
}

const MAX_NDIM: usize = 8;

impl Taker {
    /// Returns `None` if burn cannot be asked for all of them, or if the device copies tensors.
    pub(super) fn new(shapes: BTreeMap<String, Vec<usize>>, device: &Device) -> Option<Self> {
        let can_be_asked_for = shapes.values().all(|shape| (1..=MAX_NDIM).contains(&shape.len()));
        (can_be_asked_for && lends_memory(device)).then(|| Self {
            shapes: Arc::new(shapes),
            device: device.clone(),
            taken: Vec::new(),
        })
    }

    pub(super) fn may_fit(&self, record: &ModuleRecord) -> bool {
        record.len() == self.shapes.len()
    }

    /// Unpacks a record, which burn drops if a tensor has another name or shape.
    pub(super) fn unpack(&self, record: ModuleRecord) -> Result<Unpacked> {
        let record = record.with_dtype_policy(DTypePolicy::FromRecord);
        let record = record.validate(true).allow_partial(false).allow_unused(false);
        let taker = self.clone().try_load_record(record).map_err(of_record)?;
        Ok(Unpacked::of_tensors(Content::default(), taker.taken))
    }

    /// Takes a tensor as integers, which keeps every dtype except booleans.
    fn take<const D: usize>(
        &self,
        mapper: &mut impl ModuleMapper,
        name: &str,
        shape: &[usize],
    ) -> Option<TakenTensor> {
        let init = |device: &Device, _: bool| Tensor::<D, Int>::empty([0; D], device);
        let id = ParamId::from(0);
        let empty =
            Param::uninitialized(id, init, self.device.clone(), false, shape.to_vec().into());
        let given = mapper.map_int(empty);
        // A parameter without a value was not in the record.
        given.is_initialized().then(|| TakenTensor {
            name: name.into(),
            id: Some(given.id.val()),
            data: given.into_value().into_data(),
        })
    }
}

/// Returns `true` if the device lends the memory of floats as integers.
fn lends_memory(device: &Device) -> bool {
    // Other backends copy floats, and refuse them as integers.
    gives_back::<Float>(device) && gives_back::<Int>(device)
}

fn gives_back<K: Basic>(device: &Device) -> bool {
    let bytes = Bytes::from_elems(vec![0.0_f32; 16]).shared();
    // While this view exists, no other values can have the address.
    let Ok(view) = bytes.view(0, bytes.len()) else { return false };
    let data = TensorData::from_bytes(bytes, [16], DType::F32);
    let data = Tensor::<1, K>::from_data(data, (device, DType::F32)).into_data();
    data.dtype() == DType::F32 && data.as_bytes().as_ptr_range() == view.as_ptr_range()
}

impl Module for Taker {
    fn map<M: ModuleMapper>(mut self, mapper: &mut M) -> Self {
        for (name, shape) in &*Arc::clone(&self.shapes) {
            mapper.enter_module(name, "");
            let taken = match shape.len() {
                1 => self.take::<1>(mapper, name, shape),
                2 => self.take::<2>(mapper, name, shape),
                3 => self.take::<3>(mapper, name, shape),
                4 => self.take::<4>(mapper, name, shape),
                5 => self.take::<5>(mapper, name, shape),
                6 => self.take::<6>(mapper, name, shape),
                7 => self.take::<7>(mapper, name, shape),
                MAX_NDIM => self.take::<MAX_NDIM>(mapper, name, shape),
                _ => None,
            };
            mapper.exit_module(name, "");
            self.taken.extend(taken);
        }
        self
    }

    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {}

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::BoolStore;
    use burn::train::checkpoint::Checkpoint as _;
    use burn_store::burn_pack::{Tensor as PackTensor, Writer};

    use super::super::record::saved;
    use super::*;

    fn of_bytes(record: ModuleRecord) -> Unpacked {
        Unpacked::of_bytes(record.checkpoint_into_bytes().unwrap()).unwrap()
    }

    fn taker(shape: &[usize]) -> Option<Taker> {
        Taker::new([("w".into(), shape.to_vec())].into(), &Device::default())
    }

    fn one(dtype: DType, shape: &[usize]) -> ModuleRecord {
        let count: usize = shape.iter().product();
        let byte =
            |i: usize| if dtype.is_bool() { u8::from(i.is_multiple_of(8)) } else { (i * 37) as u8 };
        let bytes = Bytes::from_bytes_vec((0..count * dtype.size()).map(byte).collect());
        let tensor = PackTensor::new("w".into(), dtype, shape.to_vec(), Some(7), bytes);
        ModuleRecord::from_bytes(Writer::new(vec![tensor]).into_bytes().unwrap()).unwrap()
    }

    #[test]
    fn every_dtype_and_shape_is_saved_as_in_burns_bytes() {
        let floats = [DType::F64, DType::F32, DType::Flex32, DType::F16, DType::BF16];
        let signed = [DType::I64, DType::I32, DType::I16, DType::I8];
        let unsigned = [DType::U64, DType::U32, DType::U16, DType::U8];
        let bools = [BoolStore::Native, BoolStore::U8, BoolStore::U32].map(DType::Bool);
        let dtypes = floats.into_iter().chain(signed).chain(unsigned).chain(bools);
        let shapes: [&[usize]; 4] = [&[5], &[0, 3], &[2, 3, 4], &[1, 2, 1, 1, 3, 1, 1, 2]];
        for dtype in dtypes {
            for shape in shapes {
                let unpacked = taker(shape).unwrap().unpack(one(dtype, shape)).unwrap();
                let expected = saved(of_bytes(one(dtype, shape)));
                assert_eq!(saved(unpacked), expected, "{dtype:?} {shape:?}");
            }
        }
    }

    #[test]
    fn only_tensors_that_burn_gives_are_requested() {
        assert!(taker(&[1; 8]).is_some());
        for shape in [&[][..], &[1; 9]] {
            assert!(taker(shape).is_none(), "{shape:?}");
        }
    }

    #[test]
    fn another_shape_is_an_error() {
        let taker = taker(&[4]).unwrap();
        assert!(taker.may_fit(&one(DType::U8, &[5])));
        let error = taker.unpack(one(DType::U8, &[5])).unwrap_err();
        assert!(error.to_string().contains("w: shape mismatch"), "{error}");
    }
}
