//! [`KeepEpochs`]: which epochs stay on the disk.

use std::collections::BTreeMap;

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::metric::{Metric, MetricName};

use super::{Epoch, Epochs};

/// A strategy for `with_checkpointing_strategy`: saves every epoch, and keeps the last ones and the
/// best one. [`Epochs::keep_last`] makes it.
///
/// burn's own strategies know only the epochs of their process, so a resumed run would never delete
/// older ones. This one looks at the disk, after the new epoch is saved. Only complete epochs count
/// and are deleted; [`Epochs::delete_all_but`] also deletes broken ones.
///
/// ```
/// use burn::train::metric::LossMetric;
/// use burn::train::metric::store::{Aggregate, Direction, Split};
/// use safetensors_burn::train::Epochs;
///
/// let epochs = Epochs::new("run/checkpoints");
/// let strategy = epochs.keep_last(2).keep_best(
///     &LossMetric::new(),
///     Aggregate::Mean,
///     Direction::Lowest,
///     Split::Valid,
/// );
/// ```
#[derive(Clone, Debug)]
pub struct KeepEpochs {
    epochs: Epochs,
    last: usize,
    best: Option<Best>,
    /// Epochs that were saved while no value of the metric was known.
    unknown: usize,
}

#[derive(Clone)]
struct Best {
    metric: MetricName,
    aggregate: Aggregate,
    direction: Direction,
    split: Split,
}

impl std::fmt::Debug for Best {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Best({} of {})", self.metric, self.split)
    }
}

impl Epochs {
    /// Makes a strategy that keeps the last epochs, at least one.
    pub fn keep_last(&self, count: usize) -> KeepEpochs {
        KeepEpochs { epochs: self.clone(), last: count.max(1), best: None, unknown: 0 }
    }
}

impl KeepEpochs {
    /// Keeps the epoch with the lowest or highest value of a metric, too.
    ///
    /// Epochs without a logged value are always kept, so register the metric for this split with
    /// `metric_train_numeric` or `metric_valid_numeric`. burn's `experiment.log` has a warning at
    /// the second epoch without one. burn's default `FileMetricLogger` also knows the values of
    /// earlier runs in its directory. The `InMemoryMetricLogger` suits only runs that are not
    /// resumed.
    #[must_use]
    pub fn keep_best(
        mut self,
        metric: &impl Metric,
        aggregate: Aggregate,
        direction: Direction,
        split: Split,
    ) -> Self {
        self.best = Some(Best { metric: metric.name(), aggregate, direction, split });
        self
    }

    /// Returns the complete epochs before this one.
    // None if the directory cannot be read: the save gives the better error.
    fn complete(&self, epoch: usize) -> Vec<usize> {
        let list = self.epochs.list().unwrap_or_default();
        let complete = list.iter().filter(|other| other.is_complete()).map(Epoch::number);
        // A run that was resumed from an older epoch replaces the later ones.
        complete.filter(|number| *number < epoch).collect()
    }

    /// Returns the epochs that are not kept when this one is saved.
    fn stale(&mut self, epoch: usize, value: impl Fn(&Best, usize) -> Option<f64>) -> Vec<usize> {
        let complete = self.complete(epoch);
        let mut stale = complete[..complete.len().saturating_sub(self.last - 1)].to_vec();
        if let Some(best) = &self.best {
            let numbers = complete.iter().copied().chain([epoch]);
            let known: BTreeMap<usize, f64> =
                numbers.filter_map(|number| Some((number, value(best, number)?))).collect();
            self.unknown += usize::from(known.is_empty());
            if known.is_empty() && self.unknown == 2 {
                log::warn!("{}", best.unknown());
            }
            let best = best.choose(&known);
            // The best epoch may be one without a known value.
            stale.retain(|number| known.contains_key(number) && Some(*number) != best);
        }
        stale
    }
}

impl Best {
    fn value(&self, epoch: usize, store: &EventStoreClient) -> Option<f64> {
        store.find_metric(&self.metric, epoch, self.aggregate, &self.split)
    }

    fn unknown(&self) -> String {
        let Self { metric, split, .. } = self;
        let register = match split {
            Split::Train => "`metric_train_numeric`",
            Split::Valid => "`metric_valid_numeric`",
            Split::Test(_) => "another split, because epochs are not tested",
        };
        format!(
            "keep_best: no epoch has a value of the metric {metric} in the split {split}, so all \
             epochs are kept: register the metric with {register}"
        )
    }

    /// Returns `None` if no value is a number.
    fn choose(&self, values: &BTreeMap<usize, f64>) -> Option<usize> {
        // A NaN is never the best.
        let values = values.iter().filter(|(_, value)| !value.is_nan());
        let best = match self.direction {
            Direction::Lowest => values.min_by(|a, b| a.1.total_cmp(b.1)),
            Direction::Highest => values.max_by(|a, b| a.1.total_cmp(b.1)),
        };
        best.map(|(epoch, _)| *epoch)
    }
}

impl CheckpointingStrategy for KeepEpochs {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let stale = self.stale(epoch, |best, number| best.value(number, store));
        let stale = stale.into_iter().map(CheckpointingAction::Delete);
        [CheckpointingAction::Save].into_iter().chain(stale).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use burn::lr_scheduler::LrSchedulerRecord;
    use burn::optim::OptimizerRecord;
    use burn::store::ModuleRecord;
    use burn::train::checkpoint::{Checkpointer, CheckpointerError};
    use burn::train::metric::LossMetric;
    use burn_store::burn_pack::Writer;
    use safetensors_core::lock;

    use super::super::checkpointer::Checkpointers;
    use super::*;

    fn save(
        (model, optimizer, scheduler): &Checkpointers,
        epoch: usize,
    ) -> Result<(), CheckpointerError> {
        let bytes = Writer::new(vec![]).into_bytes().unwrap();
        model.save(epoch, ModuleRecord::from_bytes(bytes).unwrap())?;
        optimizer.save(epoch, OptimizerRecord::default())?;
        scheduler.save(epoch, LrSchedulerRecord::new())
    }

    fn five(epochs: &Epochs) {
        let checkpointers = epochs.checkpointers_without_module();
        (1..=5).for_each(|epoch| save(&checkpointers, epoch).unwrap());
    }

    #[test]
    fn epochs_without_a_value_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let epochs = Epochs::new(dir.path());
        five(&epochs);
        let mut plain = epochs.keep_last(2);
        assert_eq!(plain.stale(6, |_, _| None), [1, 2, 3, 4]);
        let mut strategy =
            plain.keep_best(&LossMetric::new(), Aggregate::Mean, Direction::Lowest, Split::Valid);
        let value = |_: &Best, epoch| [None, None, Some(0.5), Some(0.1), Some(f64::NAN)][epoch - 1];
        assert_eq!(strategy.stale(5, value), [3]);
        assert!(strategy.stale(6, |_, _| None).is_empty());
    }

    #[test]
    fn the_best_epoch_stays_if_a_better_one_is_not_saved() {
        let dir = tempfile::tempdir().unwrap();
        let epochs = Epochs::new(dir.path());
        let mut strategy = epochs.keep_last(1).keep_best(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
        );
        let checkpointers = epochs.checkpointers_without_module();
        std::fs::write(epochs.path(3), "a file").unwrap();
        for (epoch, deleted) in [(1, vec![]), (2, vec![1]), (3, vec![2]), (4, vec![])] {
            let stale = strategy.stale(epoch, |_, epoch| Some([0.5, 0.3, 0.1, 0.4][epoch - 1]));
            assert_eq!(stale, deleted);
            assert_eq!(save(&checkpointers, epoch).is_err(), epoch == 3);
            for epoch in stale {
                checkpointers.0.delete(epoch).unwrap();
                checkpointers.1.delete(epoch).unwrap();
                checkpointers.2.delete(epoch).unwrap();
            }
        }
        let complete = epochs.list().unwrap().into_iter().filter(Epoch::is_complete);
        assert_eq!(complete.map(|epoch| epoch.number()).collect::<Vec<_>>(), [2, 4]);
    }

    static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

    struct Logger;

    impl log::Log for Logger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            let text = format!("{} {}", record.level(), record.args());
            // Other tests log the same metric, but not another split.
            if text.contains("in the split train") {
                lock(&LOGGED).push(text);
            }
        }

        fn flush(&self) {}
    }

    #[test]
    fn a_metric_that_no_epoch_has_is_warned_of_once_at_the_second_epoch() {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let dir = tempfile::tempdir().unwrap();
        let epochs = Epochs::new(dir.path());
        let checkpointers = epochs.checkpointers_without_module();
        let warnings = |value: Option<f64>| {
            let (metric, split) = (LossMetric::new(), Split::Train);
            let strategy = epochs.keep_last(1);
            let mut strategy =
                strategy.keep_best(&metric, Aggregate::Mean, Direction::Lowest, split);
            let warnings = [1, 2, 3].map(|epoch| {
                strategy.stale(epoch, |_, _| value);
                save(&checkpointers, epoch).unwrap();
                std::mem::take(&mut *lock(&LOGGED))
            });
            epochs.delete_after(0).unwrap();
            warnings
        };
        let warning = "WARN keep_best: no epoch has a value of the metric Loss in the split train, \
                       so all epochs are kept: register the metric with `metric_train_numeric`";
        assert_eq!(warnings(None), [vec![], vec![warning.to_owned()], vec![]]);
        assert_eq!(warnings(Some(0.5)), [vec![], vec![], Vec::<String>::new()]);
    }

    #[test]
    fn epochs_that_are_not_complete_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let epochs = Epochs::new(dir.path());
        five(&epochs);
        std::fs::remove_file(epochs.path(5).join("manifest.json")).unwrap();
        // The last complete epoch except the new one is 4.
        assert_eq!(epochs.keep_last(2).stale(6, |_, _| None), [1, 2, 3]);
    }
}
