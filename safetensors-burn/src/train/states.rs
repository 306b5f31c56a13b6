//! [`States`]: the record of an optimizer, made of tensors that own their memory.
//!
//! `OptimizerRecord::from_bytes` makes every tensor a part of one block of memory. burn copies such
//! a tensor when a step first changes it, and the block stays as long as one of its tensors does: a
//! resumed training would hold its moments twice until its end. burn also makes records of the
//! states of an optimizer, tensor by tensor. So the tensors are given to it as the states of an
//! optimizer that does nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, LearningRate, OptimizerRecord, SgdConfig, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use burn_store::burn_pack::Scalar;

use super::container::Content;
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
        let has_state = |(name, tensor): (&String, &super::container::Described)| {
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
