//! [`States`]: the record of an optimizer, made of tensors that own their memory.
//!
//! `OptimizerRecord::from_bytes` makes every tensor a part of one block of memory. burn copies such
//! a tensor before it changes it in place, and the block stays as long as one of its tensors does.
//! burn also makes records of the states of an optimizer, tensor by tensor. So the tensors are
//! given to it as the states of an optimizer that does nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, LearningRate, OptimizerRecord, SgdConfig, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use burn_store::burn_pack::Scalar;

use super::container::{Content, Described};
use super::names::parse_id;
use super::state::RANK;

/// The states of the parameters, without their tensors.
pub(super) struct States(BTreeMap<String, StateSink>);

impl States {
    /// The states that a content has; `None` if it has anything else. Then burn could not make the
    /// same record of them.
    pub(super) fn of(content: &Content) -> Option<Self> {
        let mut states: BTreeMap<String, StateSink> = BTreeMap::new();
        for (name, scalar) in &content.scalars {
            if let Some((id, RANK)) = name.split_once('.') {
                let is_rank = parse_id(id).is_some() && matches!(scalar, Scalar::UInt(_));
                is_rank.then(|| states.insert(id.into(), StateSink::default()))?;
            }
        }
        for (name, scalar) in &content.scalars {
            let (id, rest) = name.split_once('.')?;
            let state = states.get_mut(id)?;
            if rest != RANK {
                state.scalars.push((name.clone(), *scalar));
            }
        }
        let has_state = |(name, tensor): (&String, &Described)| {
            let id = name.split_once('.').filter(|(id, _)| states.contains_key(*id));
            id.is_some_and(|(id, _)| parse_id(id) == tensor.param_id)
        };
        let are_of_parameters = content.tensors.iter().all(has_state)
            && content.metadata.keys().all(|id| states.contains_key(id));
        are_of_parameters.then_some(Self(states))
    }

    /// The record with these tensors. `rest` has all of the content but the tensors.
    pub(super) fn record(
        self,
        rest: OptimizerRecord,
        tensors: Vec<(String, TensorData)>,
    ) -> OptimizerRecord {
        let mut states = self.0;
        for (name, data) in tensors {
            let id = name.split_once('.').map(|(id, _)| id);
            if let Some(state) = id.and_then(|id| states.get_mut(id)) {
                state.tensors.push((name, data));
            }
        }
        let given = Given(Mutex::new(states));
        let optimizer = SgdConfig::new().init().with_group(ParamGroup::all(), given, None);
        optimizer.load_record(rest).to_record()
    }
}

/// An optimizer for burn, which makes no steps. The state of each parameter is what was read for
/// it, and is given away once.
struct Given(Mutex<BTreeMap<String, StateSink>>);

impl DynOptimizer for Given {
    fn step_dyn(
        &self,
        _rank: usize,
        _rate: LearningRate,
        tensor: BridgeTensor,
        _gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, state)
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, _state: &DynState, out: &mut StateSink) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *out = states.remove(prefix).unwrap_or_default();
    }

    fn state_unflatten(
        &self,
        rank: usize,
        _prefix: &str,
        _source: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        Some(DynState::create((), rank))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bytes, DType};
    use burn::train::checkpoint::Checkpoint;
    use burn_store::burn_pack::Reader;

    use super::super::container::{self, Container};
    use super::*;

    /// Moments of the parameter 7, and the numbers and the path of 7 and 9.
    fn content() -> Content {
        let moment = |name: &str| (name.into(), Described::new(DType::F32, &[2], Some(7)));
        let scalars = [
            ("7.__rank", Scalar::UInt(1)),
            ("7.time", Scalar::UInt(3)),
            ("9.__rank", Scalar::UInt(0)),
            ("9.rate", Scalar::Float(0.1)),
        ];
        Content {
            tensors: [moment("7.m"), moment("7.v.0")].into(),
            metadata: [("7".into(), "w".into()), ("9".into(), "b".into())].into(),
            scalars: scalars.map(|(name, value)| (name.into(), value)).into(),
        }
    }

    #[test]
    fn the_record_is_the_same() {
        let states = States::of(&content()).unwrap();
        let tensors = ["7.m", "7.v.0"].map(|name| {
            let bytes = Bytes::from_elems(vec![1.0_f32, 2.0]);
            (name.to_owned(), TensorData::from_bytes(bytes, [2], DType::F32))
        });
        let rest = Content { tensors: BTreeMap::new(), ..content() };
        let rest = container::build(rest, |_, _| Ok(())).unwrap();
        let rest = OptimizerRecord::checkpoint_from_bytes(rest).unwrap();
        let record = states.record(rest, tensors.into());
        let bytes = record.checkpoint_into_bytes().unwrap();
        let found = Container::parse(bytes.clone()).unwrap().content;
        assert_eq!((&found.scalars, &found.metadata), (&content().scalars, &content().metadata));
        let tensors = Reader::from_bytes(bytes).unwrap().into_tensors().unwrap();
        let names: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.param_id)).collect();
        assert_eq!(names, [("7.m", Some(7)), ("7.v.0", Some(7))]);
    }

    /// burn could not make the same record of these.
    #[test]
    fn what_belongs_to_no_parameter_is_not_taken() {
        let with = |change: fn(&mut Content)| {
            let mut content = content();
            change(&mut content);
            States::of(&content).is_none()
        };
        assert!(with(|content| _ = content.scalars.insert("k".into(), Scalar::Int(1))));
        assert!(with(|content| _ = content.scalars.insert("8.time".into(), Scalar::UInt(1))));
        assert!(with(|content| _ = content.scalars.insert("7.__rank".into(), Scalar::Int(1))));
        assert!(with(|content| _ = content.scalars.insert("07.__rank".into(), Scalar::UInt(1))));
        assert!(with(|content| _ = content.scalars.remove("7.__rank")));
        assert!(with(|content| _ = content.metadata.insert("x".into(), "y".into())));
        assert!(with(|content| content.tensors.get_mut("7.m").unwrap().param_id = None));
        assert!(with(|content| content.tensors.get_mut("7.m").unwrap().param_id = Some(9)));
        assert!(!with(|_| {}));
        assert!(States::of(&Content::default()).is_some());
    }
}
