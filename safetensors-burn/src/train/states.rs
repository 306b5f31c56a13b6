//! The states of an optimizer, tensor by tensor: [`States`] makes a record of them, and
//! [`StateNames`] unpacks one.
//!
//! burn makes bytes of a record, and a record of bytes. Both copy every tensor, and every tensor of
//! the record is a part of one block of memory: burn copies such a tensor before it changes it in
//! place, and the block stays as long as one of its tensors does. burn also gives the states of a
//! record to the optimizer that it is loaded into, and makes a record of the states of an
//! optimizer. Neither copies a tensor. So an optimizer that makes no steps gives and takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex};

use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink,
    StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use burn::train::checkpoint::Checkpoint as _;
use burn_store::burn_pack::Scalar;
use safetensors_core::Result;
use safetensors_core::lock;

use super::EpochError;
use super::container::{Container, Content};
use super::error::of_record;
use super::names::{RANK, parse_id};
use super::packed::Described;
use super::unpacked::Unpacked;

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
        Carrier { states: Arc::new(Mutex::new(states)), ..Carrier::default() }
            .optimizer()
            .load_record(rest)
            .to_record()
    }
}

/// The names in the states of an optimizer. burn gives a tensor or a number only to who asks by
/// name.
#[derive(Debug)]
pub(super) struct StateNames {
    /// The names of tensors and scalars without the ids of the parameters, such as
    /// `momentum.moment_1`, and the rank.
    leaves: BTreeSet<String>,
    /// How many tensors and scalars the record had.
    counts: (usize, usize),
    /// Its [`summary`].
    summary: String,
}

impl StateNames {
    /// The names in the content of a record. `None` if it has anything but states of parameters.
    pub(super) fn of(content: &Content, summary: String) -> Option<Self> {
        // Only a check.
        States::of(content)?;
        let (tensors, scalars) = (&content.tensors, &content.scalars);
        let names = tensors.keys().chain(scalars.keys());
        let leaves = names.filter_map(|name| Some(name.split_once('.')?.1.to_owned())).collect();
        Some(Self { leaves, counts: (tensors.len(), scalars.len()), summary })
    }

    /// Whether a record has as many tensors and scalars. It may be that of other parameters.
    pub(super) fn may_fit(&self, record: &OptimizerRecord) -> bool {
        record.len() == self.counts.0 && summary(record) == self.summary
    }

    /// Unpacks a record that [may fit](StateNames::may_fit). No tensor is copied.
    ///
    /// # Errors
    ///
    /// [`EpochError::Record`] if burn has not given all: the states have other names. The record is
    /// lost then, because it can be loaded only once and has no clone.
    pub(super) fn unpack(&self, record: OptimizerRecord) -> Result<Unpacked> {
        let carrier = Carrier::default();
        let optimizer = carrier.clone().optimizer().load_record(record);
        let Loaded { ids, mut source } = mem::take(&mut *lock(&carrier.loaded));
        // The states are here, so this has only the paths, and the ranks.
        let rest = optimizer.to_record().checkpoint_into_bytes().map_err(of_record)?;
        let metadata = Container::parse(rest)?.content.metadata;
        let (mut tensors, mut scalars) = (Vec::new(), BTreeMap::new());
        for id in &ids {
            for leaf in &self.leaves {
                let name = format!("{id}.{leaf}");
                if let Some(scalar) = source.take_scalar(id, leaf) {
                    scalars.insert(name.clone(), scalar);
                }
                if let Some(data) = source.take_tensor(id, leaf) {
                    tensors.push((name, parse_id(id), data));
                }
            }
        }
        let (found, expected) = ((tensors.len(), scalars.len()), self.counts);
        let content = Content { metadata, scalars, ..Content::default() };
        let unpacked = Unpacked::of_tensors(content, tensors)?;
        if found != expected || States::of(unpacked.content()).is_none() {
            let problem = format!(
                "the states have other names than in the last one: burn gave {} of {} tensors and \
                 {} of {} numbers; save the epoch again",
                found.0, expected.0, found.1, expected.1
            );
            return Err(EpochError::Record(problem).into());
        }
        Ok(unpacked)
    }
}

/// A text that differs for records with another number of tensors or scalars. No method of a record
/// returns the number of its scalars.
pub(super) fn summary(record: &OptimizerRecord) -> String {
    format!("{record:?}")
}

/// An optimizer for burn, which makes no steps. It gives the states that it has, each once, and
/// keeps what it is given.
#[derive(Clone, Default)]
struct Carrier {
    states: Arc<Mutex<BTreeMap<String, StateSink>>>,
    loaded: Arc<Mutex<Loaded>>,
}

/// What burn gave when a record was loaded.
#[derive(Default)]
struct Loaded {
    /// The ids of the parameters.
    ids: Vec<String>,
    /// The states of all of them.
    source: StateSource,
}

impl Carrier {
    fn optimizer(self) -> ModuleOptimizer {
        SgdConfig::new().init().with_group(ParamGroup::all(), self, None)
    }
}

impl DynOptimizer for Carrier {
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
        *out = lock(&self.states).remove(prefix).unwrap_or_default();
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        let mut loaded = lock(&self.loaded);
        if loaded.ids.is_empty() {
            // The first call could have the states of all parameters.
            loaded.source = mem::take(source);
        }
        loaded.ids.push(prefix.into());
        Some(DynState::create((), rank))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bytes, DType};
    use burn_store::burn_pack::Reader;

    use super::super::container;
    use super::super::record::saved;
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
        let mut rest = Content { tensors: BTreeMap::new(), ..content() };
        let rest = container::build(&mut rest, |_, _| Ok(())).unwrap();
        let rest = OptimizerRecord::checkpoint_from_bytes(rest).unwrap();
        let record = states.record(rest, tensors.into());
        let bytes = record.checkpoint_into_bytes().unwrap();
        let found = Container::parse(bytes.clone()).unwrap().content;
        assert_eq!((&found.scalars, &found.metadata), (&content().scalars, &content().metadata));
        let tensors = Reader::from_bytes(bytes).unwrap().into_tensors().unwrap();
        let names: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.param_id)).collect();
        assert_eq!(names, [("7.m", Some(7)), ("7.v.0", Some(7))]);
    }

    /// The record of a content, whose tensors are as long as their shapes say.
    fn record(mut content: Content) -> OptimizerRecord {
        let bytes = container::build(&mut content, |_, memory| {
            memory.iter_mut().zip((0_u8..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n);
            Ok(())
        });
        OptimizerRecord::checkpoint_from_bytes(bytes.unwrap()).unwrap()
    }

    fn names_of(content: &Content) -> StateNames {
        StateNames::of(content, summary(&record(content.clone()))).unwrap()
    }

    #[test]
    fn a_record_is_saved_as_in_burns_bytes() {
        let names = names_of(&content());
        assert!(names.may_fit(&record(content())));
        let taken = names.unpack(record(content())).unwrap();
        let bytes = record(content()).checkpoint_into_bytes().unwrap();
        assert_eq!(saved(&taken), saved(&Unpacked::of_bytes(bytes).unwrap()));
    }

    /// A new run may have other ids, and as many parameters.
    #[test]
    fn the_names_fit_other_parameters() {
        let names = names_of(&content());
        let other = renamed(content(), |name| name.replacen('7', "5", 1));
        let taken = names.unpack(record(other.clone())).unwrap();
        let found: Vec<_> = taken.content().tensors.keys().collect();
        assert_eq!(found, ["5.m", "5.v.0"]);
        assert_eq!(
            (&taken.content().scalars, &taken.content().metadata),
            (&other.scalars, &other.metadata)
        );
    }

    #[test]
    fn a_record_with_more_or_fewer_does_not_fit() {
        let names = names_of(&content());
        let with = |change: fn(&mut Content)| {
            let mut content = content();
            change(&mut content);
            names.may_fit(&record(content))
        };
        assert!(with(|_| {}));
        assert!(!with(|content| _ = content.tensors.remove("7.m")));
        assert!(!with(|content| _ = content.scalars.remove("7.time")));
        assert!(!with(|content| _ = content.scalars.insert("7.rate".into(), Scalar::UInt(1))));
    }

    /// Other names below the ids, a number of no parameter, a name without an id.
    #[test]
    fn a_record_with_other_names_is_an_error() {
        for (from, to) in [
            ("7.m", "7.mean"),
            ("7.time", "7.step"),
            ("7.v.0", "7.v.0.deep"),
            ("7.m", "k"),
            ("7.time", "time"),
        ] {
            let mut other =
                renamed(content(), |name| if name == from { to.into() } else { name.into() });
            if let Some(tensor) = other.tensors.get_mut(to) {
                tensor.param_id = Some(7);
            }
            let (names, record) = (names_of(&content()), record(other));
            assert!(names.may_fit(&record));
            let error = names.unpack(record).unwrap_err();
            assert!(error.to_string().contains("burn gave"), "{to}: {error}");
        }
    }

    /// The content with other names.
    fn renamed(content: Content, rename: impl Fn(&str) -> String) -> Content {
        let Content { tensors, metadata, scalars } = content;
        let tensors = tensors.into_iter().map(|(name, mut tensor)| {
            let name = rename(&name);
            tensor.param_id = name.split_once('.').and_then(|(id, _)| parse_id(id));
            (name, tensor)
        });
        Content {
            tensors: tensors.collect(),
            metadata: metadata.into_iter().map(|(key, path)| (rename(&key), path)).collect(),
            scalars: scalars.into_iter().map(|(name, scalar)| (rename(&name), scalar)).collect(),
        }
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
