//! [`KeepEpochs`]: which epochs stay on the disk.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::metric::{Metric, MetricName};

use super::Epochs;

/// A strategy for `with_checkpointing_strategy`: saves every epoch, and keeps the last ones and the
/// best one.
///
/// burn's own strategies know only the epochs that their process has saved. A run that is resumed
/// would never delete the epochs of the run before. This one looks at what is on the disk. An epoch
/// is deleted only after the new one is saved.
///
/// ```
/// use burn::train::metric::LossMetric;
/// use burn::train::metric::store::{Aggregate, Direction, Split};
/// use safetensors_burn::train::{Epochs, KeepEpochs};
///
/// let epochs = Epochs::new("run/checkpoints");
/// let strategy = KeepEpochs::last(&epochs, 2).and_best(
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
}

/// What the best epoch is.
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

impl KeepEpochs {
    /// Keeps the last epochs, at least one.
    pub fn last(epochs: &Epochs, count: usize) -> Self {
        Self { epochs: epochs.clone(), last: count.max(1), best: None }
    }

    /// Also keeps the epoch with the lowest or highest value of a metric. Only epochs whose values
    /// burn's metric loggers know are compared. The `FileMetricLogger`, which is burn's default,
    /// also knows those of earlier runs in the same directory. The `InMemoryMetricLogger` counts
    /// epochs from the start of the process, so it suits only runs that are not resumed.
    #[must_use]
    pub fn and_best(
        mut self,
        metric: &impl Metric,
        aggregate: Aggregate,
        direction: Direction,
        split: Split,
    ) -> Self {
        self.best = Some(Best { metric: metric.name(), aggregate, direction, split });
        self
    }

    /// The epochs up to this one that are not kept, given the best one.
    fn stale(&self, epoch: usize, best: Option<usize>) -> Vec<usize> {
        // A directory that cannot be read keeps what it has. The save gives the better error.
        let mut numbers = self.epochs.numbers().unwrap_or_default();
        // A run that was resumed from an older epoch replaces the later ones.
        numbers.retain(|number| *number < epoch);
        numbers.truncate(numbers.len().saturating_sub(self.last - 1));
        numbers.retain(|number| Some(*number) != best);
        numbers
    }
}

impl Best {
    /// The best of these epochs; `None` if no value is known.
    fn of(&self, epochs: Vec<usize>, store: &EventStoreClient) -> Option<usize> {
        let value = |epoch| store.find_metric(&self.metric, epoch, self.aggregate, &self.split);
        let values = epochs.into_iter().filter_map(|epoch| Some((epoch, value(epoch)?)));
        // A NaN is never the best.
        let values = values.filter(|(_, value)| !value.is_nan());
        let best = match self.direction {
            Direction::Lowest => values.min_by(|a, b| a.1.total_cmp(&b.1)),
            Direction::Highest => values.max_by(|a, b| a.1.total_cmp(&b.1)),
        };
        best.map(|(epoch, _)| epoch)
    }
}

impl CheckpointingStrategy for KeepEpochs {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let best = self.best.as_ref().and_then(|best| {
            let mut candidates = self.epochs.numbers().unwrap_or_default();
            candidates.retain(|number| *number < epoch);
            candidates.push(epoch);
            best.of(candidates, store)
        });
        let stale = self.stale(epoch, best).into_iter().map(CheckpointingAction::Delete);
        [CheckpointingAction::Save].into_iter().chain(stale).collect()
    }
}
