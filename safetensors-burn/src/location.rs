//! [`Location`]: the position in a traversal of a module, as burn-store counts it.

/// The path to the current parameter, and the types that contain it.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    path: Vec<String>,
    containers: Vec<String>,
    skip_enum_variants: bool,
}

impl Location {
    pub(crate) fn root(skip_enum_variants: bool) -> Self {
        Self { path: Vec::new(), containers: Vec::new(), skip_enum_variants }
    }

    #[cfg(feature = "train")]
    pub(crate) fn without_enum_variants(&self) -> Self {
        let mut without = Self::root(true);
        for (container, name) in self.steps() {
            without.enter(name, container);
        }
        without
    }

    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.containers.push(container.into());
        if self.counts(container) {
            self.path.push(name.into());
        }
    }

    pub(crate) fn exit(&mut self, container: &str) {
        self.containers.pop();
        if self.counts(container) {
            self.path.pop();
        }
    }

    pub(crate) fn path(&self) -> String {
        self.path.join(".")
    }

    pub(crate) fn sibling(&self, name: &str) -> String {
        let parent = self.path.split_last().map_or(&[][..], |(_, parent)| parent);
        parent.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    pub(crate) fn name(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// Returns pairs from the root to the parameter: the type that has a field, and the field.
    pub(crate) fn steps(&self) -> Vec<(&str, &str)> {
        let containers = self.containers.iter().filter(|container| self.counts(container));
        containers.map(String::as_str).zip(self.path.iter().map(String::as_str)).collect()
    }

    /// Returns the types that contain the parameter, outermost first, such as `Struct:Linear`.
    pub(crate) fn containers(&self) -> &[String] {
        &self.containers
    }

    fn counts(&self, container: &str) -> bool {
        !(self.skip_enum_variants && container.starts_with("Enum:"))
    }
}

/// Implements burn's `ModuleVisitor` for a type with a `location`, and a method `add` for the kind
/// of a parameter, the parameter, and whether it is a matrix in columns.
macro_rules! visit_parameters {
    ($visitor:ty) => {
        impl burn::module::ModuleVisitor for $visitor {
            fn enter_module(&mut self, name: &str, container_type: &str) {
                self.location.enter(name, container_type);
            }

            fn exit_module(&mut self, _name: &str, container_type: &str) {
                self.location.exit(container_type);
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.add(Kind::Float, param, &|| is_column(param));
            }

            fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, burn::tensor::Int>>) {
                self.add(Kind::Int, param, &|| false);
            }

            fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, burn::tensor::Bool>>) {
                self.add(Kind::Bool, param, &|| false);
            }
        }
    };
}

pub(crate) use visit_parameters;
