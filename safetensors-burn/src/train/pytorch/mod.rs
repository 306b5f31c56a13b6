//! The state of a PyTorch optimizer as a record of burn, and back.

mod load;
mod save;

pub use load::load_pytorch_optimizer;
pub use save::save_pytorch_optimizer;

use crate::pytorch::StoredParameter;

struct Kinds {
    of: Parameters,
    tensors: &'static [Kind],
    steps: Option<&'static str>,
}

enum Parameters {
    All,
    Vectors,
    /// Matrices and more, in PyTorch's shape.
    Matrices,
    Transposed,
}

impl Kinds {
    fn fit(&self, ndim: usize, stored: &StoredParameter) -> bool {
        // The means over the columns of a tensor differ from the means of its parts.
        let is_whole = ndim >= 2 && !stored.is_part();
        match self.of {
            Parameters::All => true,
            Parameters::Vectors => ndim < 2,
            Parameters::Matrices => is_whole && !stored.transposed,
            Parameters::Transposed => is_whole && stored.transposed,
        }
    }
}

struct Kind {
    pytorch: &'static str,
    burn: &'static str,
    is_needed: bool,
    /// The dimension of the means, in PyTorch, counted from the last one as 1.
    mean: Option<usize>,
}

const fn kind(pytorch: &'static str, burn: &'static str) -> Kind {
    Kind { pytorch, burn, is_needed: true, mean: None }
}

const fn mean(dim: usize, pytorch: &'static str, burn: &'static str) -> Kind {
    Kind { mean: Some(dim), ..kind(pytorch, burn) }
}

const OPTIMIZERS: [Kinds; 5] = [
    // Adam and AdamW. The last one is AMSGrad's.
    Kinds {
        of: Parameters::All,
        tensors: &[
            kind("exp_avg", "momentum.moment_1"),
            kind("exp_avg_sq", "momentum.moment_2"),
            Kind { is_needed: false, ..kind("max_exp_avg_sq", "momentum.max_moment_2") },
        ],
        steps: Some("momentum.time"),
    },
    // SGD with momentum.
    Kinds {
        of: Parameters::All,
        tensors: &[kind("momentum_buffer", "momentum.velocity")],
        steps: None,
    },
    // Adafactor. The rows of a transposed matrix are its columns.
    Kinds {
        of: Parameters::Vectors,
        tensors: &[kind("variance", "second_moment")],
        steps: Some("time"),
    },
    Kinds {
        of: Parameters::Matrices,
        tensors: &[mean(1, "row_var", "second_moment"), mean(2, "col_var", "column_second_moment")],
        steps: Some("time"),
    },
    Kinds {
        of: Parameters::Transposed,
        tensors: &[mean(1, "row_var", "column_second_moment"), mean(2, "col_var", "second_moment")],
        steps: Some("time"),
    },
];
