//! Which parameters a [`CheckpointStore`] loads and saves, and under which names.

use burn_store::PathFilter;
use regex::Regex;

use super::CheckpointStore;

/// # Which parameters
///
/// Filters are compared with names: on loading the paths of the parameters in the module, on saving
/// the names that the [adapter](CheckpointStore::with_to_adapter) makes of them, such as `weight`
/// for `gamma`. Rules for names come after the filters.
///
/// A parameter is selected if one filter matches, or if there is no filter. Others are neither
/// missing nor changed. So a file of a few parameters, such as LoRA's, is saved and loaded with the
/// same filter:
///
/// ```
/// use burn::module::{Initializer, Module, Param};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use safetensors_burn::{CheckpointStore, ModuleSnapshot, ModuleStore};
///
/// #[derive(Module, Debug)]
/// struct Adapted {
///     base: Linear,
///     lora_a: Param<Tensor<2>>,
///     lora_b: Param<Tensor<2>>,
/// }
///
/// let device = Device::default();
/// let ones = |shape: [usize; 2]| Initializer::Ones.init(shape, &device);
/// let new = || Adapted {
///     base: LinearConfig::new(4, 4).init(&device),
///     lora_a: ones([4, 1]),
///     lora_b: ones([1, 4]),
/// };
/// let store = || CheckpointStore::from_bytes(None);
/// let trained = new();
/// let (mut base, mut lora) = (store().prefix("base"), store().with_regex(r"^lora_"));
/// trained.base.save_into(&mut base)?;
/// trained.save_into(&mut lora)?;
/// assert_eq!(lora.keys()?, ["lora_a", "lora_b"]);
///
/// let mut model = new();
/// // The file of the base lacks the other parameters.
/// model.load_from(&mut base.prefix("").allow_partial(true))?;
/// model.load_from(&mut lora)?;
/// assert_eq!(model.base.weight.to_data(), trained.base.weight.to_data());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
impl CheckpointStore {
    /// Selects the parameters with names that match the filter. Replaces all filters.
    #[must_use]
    pub fn filter(mut self, filter: PathFilter) -> Self {
        self.filter.paths = filter;
        self.filter.patterns.clear();
        self
    }

    /// Selects the parameters with names that match a regular expression.
    ///
    /// A bad pattern is a [`StoreError::Pattern`](crate::StoreError::Pattern) when the store is
    /// used.
    #[must_use]
    pub fn with_regex(mut self, pattern: impl AsRef<str>) -> Self {
        if let Some(pattern) = self.compile(pattern.as_ref()) {
            self.filter.patterns.push(pattern);
        }
        self
    }

    /// Selects by several regular expressions, see [`with_regex`](CheckpointStore::with_regex).
    #[must_use]
    pub fn with_regexes(self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        patterns.into_iter().fold(self, |store, pattern| store.with_regex(pattern))
    }

    /// Selects the parameter of this name.
    #[must_use]
    pub fn with_full_path(mut self, path: impl Into<String>) -> Self {
        self.filter.paths = self.filter.paths.with_full_path(path);
        self
    }

    /// Selects the parameters of these names.
    #[must_use]
    pub fn with_full_paths(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.filter.paths = self.filter.paths.with_full_paths(paths);
        self
    }

    /// Selects the parameters for which the predicate returns `true`. It gets the name, and the
    /// types that contain the parameter, outermost first: `Struct:Model.Struct:Linear`.
    #[must_use]
    pub fn with_predicate(mut self, predicate: fn(&str, &str) -> bool) -> Self {
        self.filter.paths = self.filter.paths.with_predicate(predicate);
        self
    }

    /// Selects by several predicates, see [`with_predicate`](CheckpointStore::with_predicate).
    #[must_use]
    pub fn with_predicates(
        mut self,
        predicates: impl IntoIterator<Item = fn(&str, &str) -> bool>,
    ) -> Self {
        self.filter.paths = self.filter.paths.with_predicates(predicates);
        self
    }

    /// Selects all parameters. The other filters then have no effect.
    #[must_use]
    pub fn match_all(mut self) -> Self {
        self.filter.paths = self.filter.paths.match_all();
        self
    }
}

/// # Names
///
/// Rules change the file's names on loading, and the module's names on saving. It is an error if
/// two tensors get the same name.
impl CheckpointStore {
    /// Makes the module a part of the model in the file, such as its `encoder`: names in the file
    /// begin with `prefix` and a dot. Rules and filters see the names without it.
    ///
    /// A save writes a file of this part alone: with [`overwrite`](CheckpointStore::overwrite) it
    /// replaces the file of the entire model.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot, ModuleStore};
    ///
    /// let model: Vec<Linear> =
    ///     (0..2).map(|_| LinearConfig::new(4, 4).init(&Device::default())).collect();
    /// let mut store = CheckpointStore::from_bytes(None);
    /// model.save_into(&mut store)?;
    ///
    /// let mut second: Linear = LinearConfig::new(4, 4).init(&Device::default());
    /// let mut store = store.prefix("1");
    /// second.load_from(&mut store)?;
    /// assert_eq!(second.weight.to_data(), model[1].weight.to_data());
    /// assert_eq!(store.keys()?, ["bias", "weight"]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        let prefix = prefix.as_ref();
        let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
        self.naming.prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        self.catalog = None;
        self
    }

    /// Replaces all rules by these pairs of a pattern and a replacement, such as the public field
    /// `patterns` of burn-store's `KeyRemapper`.
    ///
    /// ```
    /// use regex::Regex;
    /// use safetensors_burn::CheckpointStore;
    ///
    /// let rules = [(r"^model\.", ""), (r"\.gamma$", ".weight")]
    ///     .map(|(pattern, to)| (Regex::new(pattern).unwrap(), to.to_owned()));
    /// let store = CheckpointStore::from_file("model.safetensors").remap(rules);
    /// ```
    #[must_use]
    pub fn remap(mut self, rules: impl IntoIterator<Item = (Regex, String)>) -> Self {
        self.naming.rules = rules.into_iter().collect();
        self.catalog = None;
        self
    }

    /// Replaces each match of the pattern in names. The replacement may refer to groups (`$1`).
    /// Several rules apply one after the other.
    ///
    /// A bad pattern is a [`StoreError::Pattern`](crate::StoreError::Pattern) when the store is
    /// used.
    #[must_use]
    pub fn with_key_remapping(
        mut self,
        pattern: impl AsRef<str>,
        replacement: impl Into<String>,
    ) -> Self {
        if let Some(pattern) = self.compile(pattern.as_ref()) {
            self.naming.rules.push((pattern, replacement.into()));
        }
        self.catalog = None;
        self
    }

    /// Sets whether the entries of lists get consecutive numbers on loading, after the rules. Off
    /// by default.
    ///
    /// PyTorch's `nn.Sequential` counts layers without parameters, and burn's `Vec` does not:
    /// `fc.0`, `fc.2` and `fc.4` become `fc.0`, `fc.1` and `fc.2`.
    #[must_use]
    pub fn map_indices_contiguous(mut self, map: bool) -> Self {
        self.naming.map_indices = map;
        self.catalog = None;
        self
    }

    /// Keeps the numbers of lists with a name that matches a regular expression. The name is the
    /// part before the number, with the old numbers: `flows` for `flows.2.weight`, `flows.2.layers`
    /// for `flows.2.layers.0.weight`.
    ///
    /// A bad pattern is a [`StoreError::Pattern`](crate::StoreError::Pattern) when the store is
    /// used.
    #[must_use]
    pub fn map_indices_contiguous_except(mut self, pattern: impl AsRef<str>) -> Self {
        if let Some(pattern) = self.compile(pattern.as_ref()) {
            self.naming.keep_indices.push(pattern);
        }
        self.catalog = None;
        self
    }

    /// Keeps an error for when the store is used.
    fn compile(&mut self, pattern: &str) -> Option<Regex> {
        match Regex::new(pattern) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                self.bad_pattern.get_or_insert(error);
                None
            }
        }
    }
}
