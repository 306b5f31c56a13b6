//! Shared by calls of functions: [`Wrong`], and their numbers.

use super::values::{MOST_DIMENSIONS, Value, Values};
use crate::error::Error;

pub(super) enum Wrong {
    Problem(String),
    Error(Error),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<String> for Wrong {
    fn from(problem: String) -> Self {
        Self::Problem(problem)
    }
}

impl From<&str> for Wrong {
    fn from(problem: &str) -> Self {
        Self::Problem(problem.into())
    }
}

pub(super) fn shape(values: &Values, value: Value) -> Result<Vec<usize>, String> {
    numbers(values, value)?;
    Ok(values.sizes(value).ok_or("the shape of a tensor is not a tuple of numbers")?)
}

pub(super) fn numbers(values: &Values, value: Value) -> Result<Option<Vec<u64>>, String> {
    let Some(items) = values.items(value) else { return Ok(None) };
    // A pickle can use one long list in many tensors.
    if items.len() > MOST_DIMENSIONS {
        let found = items.len();
        let problem = format!("a tensor has {found} dimensions, but PyTorch has at most ");
        return Err(format!("{problem}{MOST_DIMENSIONS}"));
    }
    Ok(items.iter().map(|&item| item.count()).collect())
}
