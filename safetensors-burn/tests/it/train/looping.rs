//! burn's own training loop, with a strategy that keeps some of the epochs.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::Param;
use burn::optim::SgdConfig;
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};

use super::*;

/// A number that grows by 1 in each epoch.
#[derive(Module, Debug)]
struct Counter {
    value: Param<Tensor<2>>,
}

struct One;

impl Batcher<(), ()> for One {
    fn batch(&self, _items: Vec<()>, _device: &Device) {}
}

impl Counter {
    fn output(&self, loss: Tensor<1>) -> RegressionOutput {
        RegressionOutput::new(loss, self.value.val(), self.value.val())
    }
}

impl TrainStep for Counter {
    type Input = ();
    type Output = RegressionOutput;

    fn step(&self, (): ()) -> TrainOutput<RegressionOutput> {
        let loss = self.value.val().neg().sum();
        TrainOutput::new(self, loss.backward(), self.output(loss))
    }
}

impl InferenceStep for Counter {
    type Input = ();
    type Output = RegressionOutput;

    /// The loss is the lowest after epoch 3.
    fn step(&self, (): ()) -> RegressionOutput {
        self.output((self.value.val() - 3.0).powi_scalar(2).sum())
    }
}

/// Trains to an epoch, from the newest complete one. Returns the error of the training, and the
/// number that was reached.
fn launch(epochs: &Epochs, to: usize, direction: Direction) -> (Option<String>, f32) {
    let device = Device::default().autodiff();
    let value = Param::from_tensor(Tensor::zeros([1, 1], &device));
    let learner = Learner::new(Counter { value }, SgdConfig::new().init(), ConstantLr::new(1.0));
    let loader = || -> Arc<dyn DataLoader<()>> {
        DataLoaderBuilder::new(One).batch_size(1).build(InMemDataset::new(vec![()]))
    };
    let loss = LossMetric::new();
    let strategy = epochs.keep_last(2).keep_best(&loss, Aggregate::Mean, direction, Split::Valid);
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let directory = epochs.path(1).parent().unwrap().with_file_name("metrics");
    let mut run = SupervisedTraining::new(directory, loader(), loader())
        .num_epochs(to)
        .metric_valid_numeric(loss)
        .with_application_logger(None)
        .with_custom_checkpointers(model, optimizer, scheduler)
        .with_checkpointing_strategy(strategy);
    if let Some(newest) = epochs.newest().unwrap() {
        run = run.checkpoint(newest);
    }
    let result = run.launch(learner);
    let error = result.error.map(|error| error.to_string());
    (error, result.model.value.val().into_scalar::<f32>())
}

/// Trains to an epoch, without an error.
fn train(epochs: &Epochs, to: usize, direction: Direction) -> f32 {
    let (error, reached) = launch(epochs, to, direction);
    assert_eq!(error, None);
    reached
}

/// The best epoch of the run before stays, and its other epochs go.
#[test]
fn the_last_epochs_and_the_best_are_kept_by_a_run_that_is_resumed() {
    let (_dir, epochs) = empty();
    assert_eq!(train(&epochs, 2, Direction::Lowest), 2.0);
    assert_eq!(numbers(&epochs), [1, 2]);
    assert_eq!(train(&epochs, 5, Direction::Lowest), 5.0);
    assert_eq!(numbers(&epochs), [3, 4, 5]);
    assert_eq!(train(&epochs, 8, Direction::Lowest), 8.0);
    assert_eq!(numbers(&epochs), [3, 7, 8]);
    // The newest epoch has the highest loss.
    assert_eq!(train(&epochs, 9, Direction::Highest), 9.0);
    assert_eq!(numbers(&epochs), [8, 9]);
}

/// A run that goes back to an older epoch does not delete the epochs that it will replace.
#[test]
fn a_run_from_an_older_epoch_replaces_the_later_ones() {
    let (_dir, epochs) = empty();
    train(&epochs, 3, Direction::Lowest);
    let later = epochs.path(7);
    fs::create_dir(&later).unwrap();
    train(&epochs, 4, Direction::Lowest);
    assert_eq!(numbers(&epochs), [3, 4, 7]);
}

/// An error of a checkpointer ends the training, and the loop returns it with the model.
#[test]
fn an_error_ends_the_training() {
    let (_dir, epochs) = empty();
    fs::create_dir_all(epochs.path(1).parent().unwrap()).unwrap();
    fs::write(epochs.path(2), "a file").unwrap();
    let (error, reached) = launch(&epochs, 50, Direction::Lowest);
    let error = error.unwrap();
    assert!(error.contains("epoch-2") && reached < 50.0, "{error}");
    // Until it is interrupted, the training goes on, and may save a later epoch.
    let newest = epochs.newest().unwrap();
    assert!(newest.is_some_and(|newest| newest != 2), "{newest:?}");
}
