//! Takes the states of burn's own optimizers tensor by tensor, without a copy.
// burn's bytes of a record copy every tensor. But burn moves states between a record and an
// optimizer. So an optimizer that makes no steps gives and takes them, by their names, which are
// below.

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
use safetensors_core::{Result, lock};

use super::EpochError;
use super::container::{self, Content};
use super::error::of_record;
use super::names::{RANK, parse_id, split_id};
use super::unpacked::{TakenTensor, Unpacked};

/// The names below the id of the parameter.
pub(super) const TENSORS: [&str; 18] = [
    // AdaGrad
    "lr_decay.sum",
    // Adam and AdamW
    "momentum.moment_1",
    "momentum.moment_2",
    "momentum.max_moment_2",
    // Adan
    "momentum.exp_avg",
    "momentum.exp_avg_sq",
    "momentum.exp_avg_diff",
    "momentum.neg_pre_grad",
    // Adafactor
    "second_moment",
    "column_second_moment",
    // LAMB
    "moment_1",
    "moment_2",
    // Lion
    "momentum",
    // Muon and SGD
    "momentum.velocity",
    // RMSprop
    "square_avg.square_avg",
    "centered.avg",
    "centered.grad_avg",
    "momentum.buf",
];

const NUMBERS: [&str; 3] = ["time", "momentum.time", "lr_decay.time"];

/// Changes only if more parameters are trained.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateCounts {
    tensors: usize,
    scalars: usize,
}

impl StateCounts {
    /// Returns `None` for anything else, or no tensors: the optimizer may be of any kind.
    pub(super) fn recognize(content: &Content) -> Option<Self> {
        let tensors = content.tensors.len();
        let is_known = tensors > 0 && are_known(content);
        is_known.then_some(Self { tensors, scalars: content.scalars.len() })
    }

    /// Returns `true` if a record has the expected numbers of tensors and scalars.
    // burn shows the number of scalars only in its printed form. If that changes, no record fits.
    pub(super) fn may_fit(self, record: &OptimizerRecord) -> bool {
        let printed = format!("{record:?}");
        let count = printed.split_once("num_scalars: ").map_or("", |(_, count)| count);
        let digits = count.split(|c: char| !c.is_ascii_digit()).next();
        let scalars = digits.and_then(|digits| digits.parse().ok());
        record.len() == self.tensors && scalars == Some(self.scalars)
    }

    /// Takes a record apart.
    // One of another optimizer is lost: it can be loaded only once and has no clone.
    pub(super) fn take(self, record: OptimizerRecord) -> Result<Unpacked> {
        let carrier = Carrier::default();
        let optimizer = carrier.clone().optimizer().load_record(record);
        let mut tensors = Vec::with_capacity(self.tensors);
        for (id, state) in lock(&carrier.0).iter_mut() {
            let of_state = mem::take(&mut state.tensors).into_iter();
            let id = parse_id(id);
            tensors.extend(of_state.map(|(name, data)| TakenTensor { name, id, data }));
        }
        // The tensors are here, so this has only the numbers and the paths.
        let rest = optimizer.to_record().checkpoint_into_bytes().map_err(of_record)?;
        let content = Unpacked::of_bytes(rest)?.content;
        if tensors.len() != self.tensors || content.scalars.len() != self.scalars {
            let problem = format!(
                "the optimizer is another one than in the last record: burn gave {} of {} tensors, \
                 and {} of {} numbers; save the epoch again",
                tensors.len(),
                self.tensors,
                content.scalars.len(),
                self.scalars
            );
            return Err(EpochError::Record(problem).into());
        }
        Ok(Unpacked::of_tensors(content, tensors))
    }
}

/// Returns `true` if a content has only states of burn's own optimizers.
pub(super) fn are_known(content: &Content) -> bool {
    ids_of_known(content).is_some()
}

/// Returns `None` if the content [is not known](are_known).
fn ids_of_known(content: &Content) -> Option<BTreeSet<u64>> {
    let mut ids = BTreeSet::new();
    for (name, scalar) in &content.scalars {
        if let (Some((id, RANK)), Scalar::UInt(_)) = (split_id(name), scalar) {
            ids.insert(id);
        }
    }
    let are_numbers = content.scalars.keys().all(|name| {
        split_id(name).is_some_and(|(id, leaf)| {
            ids.contains(&id) && (leaf == RANK || NUMBERS.contains(&leaf))
        })
    });
    let are_tensors = content.tensors.iter().all(|(name, tensor)| {
        split_id(name).is_some_and(|(id, leaf)| {
            ids.contains(&id) && tensor.param_id == Some(id) && TENSORS.contains(&leaf)
        })
    });
    let are_paths =
        content.metadata.keys().all(|key| parse_id(key).is_some_and(|id| ids.contains(&id)));
    (are_numbers && are_tensors && are_paths).then_some(ids)
}

/// Makes the record of a [known](are_known) content, without copying tensors.
pub(super) fn make(
    content: &Content,
    tensors: Vec<(String, TensorData)>,
) -> Result<OptimizerRecord> {
    let carrier = Carrier::default();
    for (name, data) in tensors {
        let id = name.split_once('.').map_or("", |(id, _)| id).to_owned();
        lock(&carrier.0).entry(id).or_default().tensors.push((name, data));
    }
    // burn makes a record of all but the tensors, and they are put in their places after that.
    let mut rest = Content { tensors: BTreeMap::new(), ..content.clone() };
    let rest = container::build(&mut rest, |_, _| Ok(()))?;
    let rest = OptimizerRecord::checkpoint_from_bytes(rest).map_err(of_record)?;
    Ok(carrier.optimizer().load_record(rest).to_record())
}

/// An optimizer that makes no steps: it keeps the states that it is given, and gives each away
/// once.
#[derive(Clone, Default)]
struct Carrier(Arc<Mutex<BTreeMap<String, StateSink>>>);

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
        *out = lock(&self.0).remove(prefix).unwrap_or_default();
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        let mut states = lock(&self.0);
        let state = states.entry(prefix.into()).or_default();
        for leaf in TENSORS {
            if let Some(data) = source.take_tensor(prefix, leaf) {
                state.push_tensor(prefix, leaf, data);
            }
        }
        for leaf in NUMBERS {
            if let Some(number) = source.take_scalar(prefix, leaf) {
                state.push_scalar(prefix, leaf, number);
            }
        }
        Some(DynState::create((), rank))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use burn_store::burn_pack::Reader;

    use super::super::container::Described;
    use super::super::record::saved;
    use super::*;

    /// Moments of the parameter 7, and the numbers and the paths of 7 and 9.
    fn content() -> Content {
        let moment = |name: &str| (name.into(), Described::new(DType::F32, &[2], Some(7)));
        let scalars = [
            ("7.__rank", Scalar::UInt(1)),
            ("7.momentum.time", Scalar::UInt(3)),
            ("9.__rank", Scalar::UInt(0)),
        ];
        Content {
            tensors: [moment("7.momentum.moment_1"), moment("7.momentum.moment_2")].into(),
            metadata: [("7".into(), "w".into()), ("9".into(), "b".into())].into(),
            scalars: scalars.map(|(name, value)| (name.into(), value)).into(),
        }
    }

    fn changed(change: fn(&mut Content)) -> Content {
        let mut content = content();
        change(&mut content);
        content
    }

    fn rename(content: &mut Content, name: &str, param_id: Option<u64>) {
        let moment = content.tensors.remove("7.momentum.moment_1").unwrap();
        content.tensors.insert(name.into(), Described { param_id, ..moment });
    }

    fn record(mut content: Content) -> OptimizerRecord {
        let bytes = container::build(&mut content, |_, memory| {
            memory.iter_mut().zip((0_u8..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n);
            Ok(())
        });
        OptimizerRecord::checkpoint_from_bytes(bytes.unwrap()).unwrap()
    }

    #[test]
    fn a_record_is_split_and_rebuilt() {
        let counts = StateCounts::recognize(&content()).unwrap();
        assert!(counts.may_fit(&record(content())));
        // A new run may have other ids, and the same number of parameters.
        let other = changed(|content| rename(content, "9.momentum.moment_1", Some(9)));
        for content in [content(), other] {
            let bytes = record(content.clone()).checkpoint_into_bytes().unwrap();
            let expected = saved(Unpacked::of_bytes(bytes.clone()).unwrap());
            let taken = counts.take(record(content.clone())).unwrap();
            assert_eq!(saved(taken), expected);

            let tensors = Reader::from_bytes(bytes).unwrap().into_tensors().unwrap();
            let tensors = tensors.into_iter().map(|tensor| {
                let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
                (name, TensorData::from_bytes(bytes, shape, dtype))
            });
            let made = make(&content, tensors.collect()).unwrap();
            let made = Unpacked::of_bytes(made.checkpoint_into_bytes().unwrap()).unwrap();
            assert_eq!(saved(made), expected);
        }
    }

    #[test]
    fn a_record_of_another_optimizer_is_an_error() {
        let counts = StateCounts::recognize(&content()).unwrap();
        let renamed = changed(|content| rename(content, "7.mean", Some(7)));
        let rate = changed(|content| {
            content.scalars.remove("7.momentum.time");
            content.scalars.insert("7.rate".into(), Scalar::UInt(3));
        });
        for (other, gave) in [(renamed, "burn gave 1 of 2 tensors"), (rate, "2 of 3 numbers")] {
            assert!(counts.may_fit(&record(other.clone())));
            let error = counts.take(record(other)).unwrap_err();
            assert!(error.to_string().contains(gave), "{error}");
        }
    }

    #[test]
    fn a_record_with_more_or_less_does_not_fit() {
        let counts = StateCounts::recognize(&content()).unwrap();
        let others: [fn(&mut Content); 3] = [
            |content| _ = content.tensors.pop_last(),
            |content| _ = content.scalars.insert("8.__rank".into(), Scalar::UInt(1)),
            |content| _ = content.scalars.insert("7.rate".into(), Scalar::Float(0.1)),
        ];
        for other in others {
            assert!(!counts.may_fit(&record(changed(other))));
        }
    }

    #[test]
    fn records_unlike_burns_optimizers_are_not_recognised() {
        let others: [fn(&mut Content); 10] = [
            |content| _ = content.scalars.insert("k".into(), Scalar::Int(1)),
            |content| _ = content.scalars.insert("8.time".into(), Scalar::UInt(1)),
            |content| _ = content.scalars.insert("7.rate".into(), Scalar::UInt(1)),
            |content| _ = content.scalars.insert("7.__rank".into(), Scalar::Int(1)),
            |content| _ = content.scalars.insert("07.__rank".into(), Scalar::UInt(1)),
            |content| _ = content.scalars.remove("7.__rank"),
            |content| _ = content.metadata.insert("x".into(), "y".into()),
            |content| rename(content, "7.mean", Some(7)),
            |content| rename(content, "7.momentum", None),
            |content| rename(content, "7.momentum", Some(9)),
        ];
        for (number, other) in others.into_iter().enumerate() {
            assert!(!are_known(&changed(other)), "{number}");
        }
        assert!(are_known(&changed(|content| rename(content, "7.momentum", Some(7)))));
        assert!(are_known(&Content::default()));
        // The next one may have tensors of any optimizer.
        assert!(StateCounts::recognize(&changed(|content| content.tensors.clear())).is_none());
    }
}
