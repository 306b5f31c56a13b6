//! A training of a model that is large enough for deltas.

use super::*;

/// A model with a large part that is not trained any more.
#[derive(Module, Debug)]
pub(super) struct Large {
    pub(super) frozen: Linear,
    pub(super) head: Linear,
}

pub(super) type Run = Training<Large>;

/// A model and an optimizer that has a state of all of it.
pub(super) fn begun() -> Run {
    let device = Device::default().autodiff();
    let mut run = Training::from_model(Large {
        frozen: LinearConfig::new(32, 64).init(&device),
        head: LinearConfig::new(64, 2).init(&device),
    });
    let input = Tensor::<2>::ones([1, 32], &device);
    run.step(run.model.head.forward(run.model.frozen.forward(input)));
    run
}

impl Run {
    /// A step that changes the head alone.
    pub(super) fn next(&mut self) {
        let input = Tensor::<2>::ones([1, 64], &Device::default().autodiff());
        self.step(self.model.head.forward(input));
    }
}
