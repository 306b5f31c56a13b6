//! The JSON of a [`RankPlan`], which is not trusted.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Division;
use super::plan::{RankPlan, RankTensor};
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::Limits;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u32,
    world_size: usize,
    tensors: Vec<TensorForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorForm {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    division: String,
}

impl RankPlan {
    /// Returns the plan as JSON: `version`, `world_size`, and the list `tensors` with `name`,
    /// `dtype`, full `shape`, and `division` as the text of a [`Division`]. Equal plans give equal
    /// texts.
    ///
    /// ```
    /// use safetensors_core::Dtype;
    /// use safetensors_core::ranks::{RankPlan, RankRules};
    ///
    /// let head = ("lm_head.weight", Dtype::F16, vec![8, 4]);
    /// let plan = RankRules::llama().plan_tensors([head], 2)?;
    /// let json = plan.to_json();
    /// assert!(json.contains(r#""division": "split:0""#));
    /// assert_eq!(json.parse::<RankPlan>()?, plan);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let tensors = self.tensors().map(|tensor| TensorForm {
            name: tensor.name().into(),
            dtype: tensor.dtype().name().into(),
            shape: tensor.shape().to_vec(),
            division: tensor.division().to_string(),
        });
        let form =
            Form { version: VERSION, world_size: self.world_size(), tensors: tensors.collect() };
        // Strings and numbers can always be written.
        let mut json = serde_json::to_string_pretty(&form).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Parses the JSON of a plan, within [`Limits`] for the bytes and entries of an index. Unknown and
/// duplicate fields and names are refused.
impl FromStr for RankPlan {
    type Err = Error;

    /// # Errors
    ///
    /// [`RankProblem::BadPlan`]; [`RankProblem::BadRule`]; the errors of
    /// [`RankRules::plan_tensors`](super::RankRules::plan_tensors).
    fn from_str(json: &str) -> Result<Self> {
        let bad = |problem: String| Error::from(RankProblem::BadPlan { problem });
        let limits = Limits::default();
        if json.len() as u64 > limits.index_bytes {
            let problem =
                format!("it has {} bytes, over the limit of {}", json.len(), limits.index_bytes);
            return Err(bad(problem));
        }
        let form: Form = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
        if form.version != VERSION {
            let problem = format!("expected version {VERSION}, found {}", form.version);
            return Err(bad(problem));
        }
        if form.tensors.len() > limits.index_entries {
            let problem = format!("it has more tensors than the limit of {}", limits.index_entries);
            return Err(bad(problem));
        }
        let tensor = |form: TensorForm| {
            let TensorForm { name, dtype, shape, division } = form;
            if shape.len() > limits.ndim {
                let problem = ErrorKind::TooManyDimensions { limit: limits.ndim };
                return Err(Error::from(problem).in_tensor(&name));
            }
            let dtype = dtype.parse().map_err(|error: Error| error.in_tensor(&name))?;
            let division =
                division.parse::<Division>().map_err(|error: Error| error.in_tensor(&name))?;
            Ok(RankTensor::new(name, dtype, shape, division))
        };
        let tensors = form.tensors.into_iter().map(tensor).collect::<Result<_>>()?;
        Self::new(form.world_size, tensors)
    }
}
