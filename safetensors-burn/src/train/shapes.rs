//! [`Shapes`]: unpacks the record of a module, tensor by tensor.
//!
//! burn makes bytes of a record, for which it copies all tensors twice. It also gives the tensors
//! of a record to the module that it is loaded into, which copies none if the tensors of its device
//! lie in the memory of the process. So a module takes them whose parameters have no values.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{DTypePolicy, ModuleRecord};
use burn::tensor::kind::Basic;
use burn::tensor::{Bytes, DType, Device, Float, Int, Tensor, TensorData};
use safetensors_core::Result;

use super::container::Content;
use super::error::of_record;
use super::unpacked::Unpacked;

/// The names and shapes of a record's tensors. burn gives a tensor only to who asks for both.
#[derive(Debug)]
pub(super) struct Shapes {
    of_tensors: BTreeMap<String, Vec<usize>>,
    device: Device,
}

/// The most dimensions of a tensor that burn is asked for.
const MAX_NDIM: usize = 8;

impl Shapes {
    /// The shapes in the content of a record. `None` if a tensor is quantised, or has no dimensions
    /// or too many. `device` is one that [lends memory](lends_memory).
    pub(super) fn of(content: &Content, device: &Device) -> Option<Self> {
        let shapes = content.tensors.iter().map(|(name, tensor)| {
            let is_quantised = matches!(tensor.dtype, DType::QFloat(_));
            (!is_quantised).then(|| (name.clone(), tensor.shape()))
        });
        Self::new(shapes.collect::<Option<_>>()?, device)
    }

    /// The shapes of tensors by their names. `None` if burn cannot be asked for all of them.
    pub(super) fn new(of_tensors: BTreeMap<String, Vec<usize>>, device: &Device) -> Option<Self> {
        let can_be_asked_for = |shape: &Vec<usize>| (1..=MAX_NDIM).contains(&shape.len());
        let device = device.clone();
        of_tensors.values().all(can_be_asked_for).then_some(Self { of_tensors, device })
    }

    /// Whether a record has as many tensors.
    pub(super) fn may_fit(&self, record: &ModuleRecord) -> bool {
        record.len() == self.of_tensors.len()
    }

    /// Unpacks a record that [may fit](Shapes::may_fit). No tensor is copied.
    ///
    /// # Errors
    ///
    /// [`EpochError::Record`](super::EpochError::Record) if a tensor has another name or shape.
    /// burn has dropped it then.
    pub(super) fn unpack(self: Arc<Self>, record: ModuleRecord) -> Result<Unpacked> {
        let record = record.with_dtype_policy(DTypePolicy::FromRecord);
        let record = record.validate(true).allow_partial(false).allow_unused(false);
        let taken = Vec::with_capacity(record.len());
        let taker = Taker { shapes: self, taken }.try_load_record(record).map_err(of_record)?;
        Unpacked::of_tensors(Content::default(), taker.taken)
    }
}

/// Whether a tensor of a device is the memory of the values that it is made of, and gives it back,
/// also if floats are asked for as integers.
pub(super) fn lends_memory(device: &Device) -> bool {
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

/// A module whose parameters have no values. It keeps the tensors that it is given.
#[derive(Clone, Debug)]
struct Taker {
    shapes: Arc<Shapes>,
    taken: Vec<(String, Option<u64>, TensorData)>,
}

impl Taker {
    /// Asks burn for a tensor. burn gives tensors of every dtype as integers, as they are. It would
    /// convert booleans.
    fn take<const D: usize>(
        &self,
        mapper: &mut impl ModuleMapper,
        shape: &[usize],
    ) -> TakenParameter {
        let init = |device: &Device, _: bool| Tensor::<D, Int>::empty([0; D], device);
        let (id, device) = (ParamId::from(0), self.shapes.device.clone());
        let empty = Param::uninitialized(id, init, device, false, shape.to_vec().into());
        let given = mapper.map_int(empty);
        // A parameter without a value was not in the record.
        given.is_initialized().then(|| (given.id.val(), given.into_value().into_data()))
    }
}

/// The id and the values of a parameter; `None` if burn has not given them.
type TakenParameter = Option<(u64, TensorData)>;

impl Module for Taker {
    fn map<M: ModuleMapper>(mut self, mapper: &mut M) -> Self {
        for (name, shape) in &Arc::clone(&self.shapes).of_tensors {
            mapper.enter_module(name, "");
            let taken = match shape.len() {
                1 => self.take::<1>(mapper, shape),
                2 => self.take::<2>(mapper, shape),
                3 => self.take::<3>(mapper, shape),
                4 => self.take::<4>(mapper, shape),
                5 => self.take::<5>(mapper, shape),
                6 => self.take::<6>(mapper, shape),
                7 => self.take::<7>(mapper, shape),
                MAX_NDIM => self.take::<MAX_NDIM>(mapper, shape),
                _ => None,
            };
            mapper.exit_module(name, "");
            self.taken.extend(taken.map(|(id, data)| (name.clone(), Some(id), data)));
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
    use burn::nn::LinearConfig;
    use burn::tensor::BoolStore;
    use burn::train::checkpoint::Checkpoint as _;
    use burn_store::burn_pack::{Tensor as PackTensor, Writer};

    use super::super::record::saved;
    use super::*;

    fn record(inputs: usize) -> ModuleRecord {
        LinearConfig::new(inputs, 4).init(&Device::default().autodiff()).into_record()
    }

    fn of_bytes(record: ModuleRecord) -> Unpacked {
        Unpacked::of_bytes(record.checkpoint_into_bytes().unwrap()).unwrap()
    }

    fn shapes_of(record: ModuleRecord) -> Option<Arc<Shapes>> {
        Shapes::of(of_bytes(record).content(), &Device::default()).map(Arc::new)
    }

    /// A record with one tensor.
    fn one(dtype: DType, shape: &[usize]) -> ModuleRecord {
        let count: usize = shape.iter().product();
        let byte =
            |i: usize| if dtype.is_bool() { u8::from(i.is_multiple_of(8)) } else { (i * 37) as u8 };
        let bytes = Bytes::from_bytes_vec((0..count * dtype.size()).map(byte).collect());
        let tensor = PackTensor::new("w".into(), dtype, shape.to_vec(), Some(7), bytes);
        ModuleRecord::from_bytes(Writer::new(vec![tensor]).into_bytes().unwrap()).unwrap()
    }

    #[test]
    fn the_default_device_of_the_tests_lends_memory() {
        assert!(lends_memory(&Device::default()));
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
                let unpacked = shapes_of(one(dtype, shape)).unwrap().unpack(one(dtype, shape));
                let expected = saved(&of_bytes(one(dtype, shape)));
                assert_eq!(saved(&unpacked.unwrap()), expected, "{dtype:?} {shape:?}");
            }
        }
    }

    #[test]
    fn tensors_that_burn_does_not_give_are_not_asked_for() {
        for shape in [&[][..], &[1; 9]] {
            assert!(shapes_of(one(DType::F32, shape)).is_none(), "{shape:?}");
        }
    }

    #[test]
    fn another_dtype_is_no_problem_and_another_shape_is_an_error() {
        let shapes = shapes_of(one(DType::Bool(BoolStore::Native), &[4])).unwrap();
        let unpacked = Arc::clone(&shapes).unpack(one(DType::U8, &[4])).unwrap();
        assert_eq!(saved(&unpacked), saved(&of_bytes(one(DType::U8, &[4]))));
        assert!(shapes.may_fit(&one(DType::U8, &[5])));
        let error = shapes.unpack(one(DType::U8, &[5])).unwrap_err();
        assert!(error.to_string().contains("w: shape mismatch"), "{error}");
    }

    #[test]
    fn a_record_of_a_module_is_saved_as_in_burns_bytes() {
        let (record, other) = (record(3), record(3));
        let shapes = shapes_of(other).unwrap();
        assert!(shapes.may_fit(&record));
        let expected = saved(&of_bytes(record.clone()));
        assert_eq!(saved(&shapes.unpack(record).unwrap()), expected);
    }
}
