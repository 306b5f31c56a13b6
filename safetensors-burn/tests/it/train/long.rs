//! A training of a model that is large enough for deltas.

use super::*;

/// A model most of which is not trained any more.
#[derive(Module, Debug)]
pub(super) struct Large {
    pub(super) frozen: Linear,
    pub(super) head: Linear,
}

#[derive(Clone)]
pub(super) struct Run {
    pub(super) model: Large,
    pub(super) optimizer: ModuleOptimizer,
    pub(super) scheduler: ModuleLrScheduler,
}

impl Run {
    /// A model and an optimizer that has a state of all of it.
    pub(super) fn new() -> Self {
        let device = Device::default().autodiff();
        let Training { scheduler, .. } = Training::new();
        let model = Large {
            frozen: LinearConfig::new(32, 64).init(&device),
            head: LinearConfig::new(64, 2).init(&device),
        };
        let mut run = Self { model, optimizer: AdamWConfig::new().init(), scheduler };
        let input = Tensor::<2>::ones([1, 32], &device);
        run.step(run.model.head.forward(run.model.frozen.forward(input)));
        run
    }

    pub(super) fn step(&mut self, output: Tensor<2>) {
        let grads = (output - 0.7).powi_scalar(2).mean().backward();
        let grads = GradientsParams::from_grads(grads, &self.model);
        self.model = self.optimizer.step(self.scheduler.step(), self.model.clone(), grads);
    }

    /// A step that changes the head alone.
    pub(super) fn next(&mut self) {
        let input = Tensor::<2>::ones([1, 64], &Device::default().autodiff());
        self.step(self.model.head.forward(input));
    }
}
