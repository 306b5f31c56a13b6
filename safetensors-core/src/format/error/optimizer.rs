//! [`OptimizerProblem`]: errors in the state of an optimizer.

use alloc::string::String;
use alloc::vec::Vec;

use super::text::NameList;
use super::{Escaped, Quoted};

/// A problem of the state of a PyTorch optimizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum OptimizerProblem {
    /// No tensor is the state of a parameter.
    #[error("there is no state of an optimizer: expected tensors such as {}", Quoted(.expected))]
    NoState { expected: String },
    /// The parameters are numbers without known names.
    #[error(
        "its {found} parameters have numbers for names: give their names, in the order of \
         PyTorch's optimizer"
    )]
    NoNames { found: usize },
    /// The number of names is not the number of parameters.
    #[error("the optimizer has {found} parameters, but {expected} names are given for them")]
    NumberOfNames { expected: usize, found: usize },
    /// Two parameters have the same name.
    #[error("two of its parameters have the name {}", Quoted(.name))]
    DuplicateName { name: String },
    /// Names were given, but the file has its own.
    #[error("the file names its parameters: give no names")]
    NamesNotNeeded,
    /// The parameter groups do not have PyTorch's form.
    #[error("{} in the metadata should be {expected}", Quoted(.key))]
    BadGroups { key: String, expected: &'static str },
    /// Parameter groups differ in a setting that the optimizer has only once.
    #[error(
        "its parameter groups differ in {setting}: {} and {}; the new optimizer has \
         one value for all parameters",
        Escaped(.one), Escaped(.other)
    )]
    GroupsDiffer { setting: &'static str, one: String, other: String },
    /// The optimizer does not support a setting's value.
    #[error("its setting {setting} should be {expected}, found {}", Escaped(.found))]
    Setting { setting: &'static str, expected: &'static str, found: String },
    /// The file does not say whether weight decay is decoupled.
    #[error(
        "the file does not record whether the optimizer is Adam or AdamW (PyTorch does since 2.7): \
         for AdamW, set PyTorchTraining::decoupled_weight_decay(true)"
    )]
    AdamOrAdamW,
    /// Not a whole number of steps that fits.
    #[error("the number of steps should be a whole number from 0 to {limit}, found {found}")]
    BadStep { limit: u64, found: f64 },
    /// Parameters differ in their number of steps, and the optimizer has one number for all.
    #[error(
        "{} made {steps} steps, and {} made {other_steps}; the new optimizer has one number for all",
        Quoted(.name), Quoted(.other)
    )]
    StepsDiffer { name: String, steps: u64, other: String, other_steps: u64 },
    /// The state of no known optimizer.
    #[error(
        "{} has the state of an unknown optimizer: {}",
        Quoted(.name), NameList(.found)
    )]
    UnknownOptimizer { name: String, found: Vec<String> },
}
