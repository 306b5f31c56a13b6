//! [`AdamW`]: candle's optimizer, with state that belongs to names.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};
use safetensors_core::{Error, ErrorKind, Result};

use super::variables::{Variable, distinct, named};
use crate::error::{from_candle_error, into_candle_error};

/// The AdamW optimizer, with a state that can be saved and loaded.
///
/// It computes the same values as [`candle_nn::AdamW`], bit for bit, and takes the same
/// [`ParamsAdamW`]. Its state is the number of steps, the hyperparameters, and the moving averages
/// of each variable's gradient (`exp_avg`) and of the gradient's square (`exp_avg_sq`), with the
/// shape, dtype and device of the variable.
///
/// The state belongs to the *names* of the variables, because the order of [`VarMap::all_vars`]
/// differs from process to process. A variable with several names has one state and is updated once
/// per step, as in PyTorch; candle's optimizer updates it once per name.
///
/// Variables that are not of a float dtype or have no elements do not change.
///
/// # In the file
///
/// | tensor | |
/// |---|---|
/// | `{name}.exp_avg`, `{name}.exp_avg_sq` | the state of a variable; the names are PyTorch's |
///
/// | metadata | |
/// |---|---|
/// | `safetensors_bridge.adamw.step` | the number of steps |
/// | `safetensors_bridge.adamw.lr`, `.beta1`, `.beta2`, `.eps`, `.weight_decay` | the hyperparameters, in decimal digits that give the same bits again; NaN as its bits, such as `0x7ff8000000000000` |
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_nn::{Optimizer, ParamsAdamW};
/// use safetensors_candle::train::{self, AdamW};
/// use safetensors_core::SaveOptions;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("optimizer.safetensors");
/// let weight = Var::new(&[1_f32, -2.0], &Device::Cpu)?;
/// let mut optimizer = AdamW::from_named([("weight", weight.clone())], ParamsAdamW::default())?;
/// optimizer.backward_step(&weight.sqr()?.sum_all()?)?;
/// train::save(&path, &optimizer, &SaveOptions::new())?;
///
/// let params = ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() };
/// let mut resumed = AdamW::from_named([("weight", weight)], params)?;
/// train::load(&path, &mut resumed)?;
/// assert_eq!((resumed.step_count(), resumed.learning_rate()), (1, 0.001));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Optimizer::new`] knows no names: its state can be neither saved nor loaded.
#[derive(Debug)]
pub struct AdamW {
    // candle's own `AdamW` keeps its moments private and pairs them with variables by position.
    pub(super) parameters: Vec<Parameter>,
    pub(super) step: usize,
    pub(super) params: ParamsAdamW,
}

#[derive(Debug)]
pub(super) struct Parameter {
    /// The variable, without names if the optimizer was made from variables alone.
    pub(super) variable: Variable,
    /// Never changed in place, so a load can replace it without a copy.
    pub(super) exp_avg: Tensor,
    pub(super) exp_avg_sq: Tensor,
}

impl AdamW {
    /// Makes an optimizer for the variables that a `VarMap` has now.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{ParamsAdamW, VarBuilder, VarMap};
    /// use safetensors_candle::train::AdamW;
    ///
    /// let var_map = VarMap::new();
    /// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
    /// let model = candle_nn::linear(2, 3, builder.pp("head"))?;
    /// let optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default())?;
    /// assert_eq!(optimizer.step_count(), 0);
    /// # let _ = model;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Framework`] if candle cannot allocate the state of a variable.
    pub fn from_var_map(var_map: &VarMap, params: ParamsAdamW) -> Result<Self> {
        Self::with_variables(distinct(named(var_map)), params)
    }

    /// Makes an optimizer for variables with these names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`] for a name that two variables have; [`ErrorKind::Framework`]
    /// if candle cannot allocate the state of a variable.
    pub fn from_named<N: Into<String>>(
        variables: impl IntoIterator<Item = (N, Var)>,
        params: ParamsAdamW,
    ) -> Result<Self> {
        let mut named: BTreeMap<String, Var> = BTreeMap::new();
        for (name, var) in variables {
            let name = name.into();
            // Two names of a variable are a tie. Two variables with the same name cannot both be
            // saved.
            if named.get(&name).is_some_and(|other| other.id() != var.id()) {
                return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(&name));
            }
            named.insert(name, var);
        }
        Self::with_variables(distinct(named), params)
    }

    fn with_variables(variables: Vec<Variable>, params: ParamsAdamW) -> Result<Self> {
        // candle's own optimizer skips the others, too.
        let floats = variables.into_iter().filter(|variable| variable.var.dtype().is_float());
        let parameters = floats.map(|variable| {
            let zeros = || {
                variable.var.zeros_like().map_err(|error| {
                    let names = variable.names.iter();
                    names.fold(from_candle_error(error), |error, name| error.in_tensor(name))
                })
            };
            Ok(Parameter { exp_avg: zeros()?, exp_avg_sq: zeros()?, variable })
        });
        Ok(Self { parameters: parameters.collect::<Result<_>>()?, step: 0, params })
    }

    /// Returns the number of steps.
    pub fn step_count(&self) -> usize {
        self.step
    }

    /// Returns the hyperparameters.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Sets the hyperparameters. A load replaces them by the checkpoint's.
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.params = params;
    }
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    /// Makes an optimizer without names, with a state that can be neither saved nor loaded.
    fn new(vars: Vec<Var>, params: ParamsAdamW) -> candle_core::Result<Self> {
        // candle gives no names here. Such an optimizer trains, but is neither saved nor loaded.
        let nameless = vars.into_iter().map(|var| Variable { names: Vec::new(), var });
        Self::with_variables(nameless.collect(), params).map_err(into_candle_error)
    }

    /// Updates every variable that has a gradient, in the order of candle's operations, for the
    /// same bits.
    fn step(&mut self, grads: &GradStore) -> candle_core::Result<()> {
        self.step += 1;
        let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = self.params;
        let lr_lambda = lr * weight_decay;
        let scale_m = 1f64 / (1f64 - beta1.powi(self.step as i32));
        let scale_v = 1f64 / (1f64 - beta2.powi(self.step as i32));
        for Parameter { variable, exp_avg, exp_avg_sq } in &mut self.parameters {
            let theta = &variable.var;
            // Without elements there is nothing to compute. candle returns the variable itself from
            // operations on it, and then cannot set it to itself.
            let grad = grads.get(theta).filter(|_| theta.elem_count() > 0);
            let Some(grad) = grad else { continue };
            let next_m = ((&*exp_avg * beta1)? + (grad * (1.0 - beta1))?)?;
            let next_v = ((&*exp_avg_sq * beta2)? + (grad.sqr()? * (1.0 - beta2))?)?;
            let m_hat = (&next_m * scale_m)?;
            let v_hat = (&next_v * scale_v)?;
            let next_theta = (theta.as_tensor() * (1f64 - lr_lambda))?;
            let adjusted_grad = (m_hat / (v_hat.sqrt()? + eps)?)?;
            let next_theta = (next_theta - (adjusted_grad * lr)?)?;
            theta.set(&next_theta)?;
            // A gradient can refer to the operations that made it. Without `detach`, the state
            // would keep the graphs of all steps in memory.
            *exp_avg = next_m.detach();
            *exp_avg_sq = next_v.detach();
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_state_does_not_refer_to_the_graph_of_a_step() {
        let weight = Var::new(&[1_f32, 2.0], &Device::Cpu).unwrap();
        let reaches = |tensor: &Tensor| {
            let grads = tensor.sum_all().unwrap().backward().unwrap();
            grads.get(&weight).is_some()
        };
        let params = ParamsAdamW::default();
        let mut optimizer = AdamW::from_named([("w", weight.clone())], params).unwrap();
        let grads = weight.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        assert!(reaches(grads.get(&weight).unwrap()), "a gradient refers to it");
        optimizer.step(&grads).unwrap();
        let Parameter { exp_avg, exp_avg_sq, .. } = &optimizer.parameters[0];
        assert!(!reaches(exp_avg) && !reaches(exp_avg_sq));
    }
}
