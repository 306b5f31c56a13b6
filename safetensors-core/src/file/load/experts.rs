//! [`ExpertLayout`] and [`ExpertOptions`]: how the experts of a mixture are stored.

/// How a checkpoint stores the experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertLayout {
    /// Each expert has its own matrices, such as `experts.3.gate_proj.weight`.
    Split,
    /// One tensor has the matrices of all experts, such as `experts.gate_up_proj`.
    Stacked,
}

/// Where a stack has the outputs of the gate, which shares it with the `up` projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateUp {
    /// The first half.
    First,
    /// The second half.
    Last,
    /// Every second one, from the first on.
    Interleaved,
}

/// Describes the stacks of an architecture that [`Checkpoint::experts`](crate::Checkpoint::experts)
/// does not know.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExpertOptions {
    pub(crate) gate_up: Option<GateUp>,
    pub(crate) transposed: bool,
}

impl ExpertOptions {
    /// Returns the default options: the architecture decides, and an unknown one is an error.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets where stacks have the gate. This overrides the architecture.
    pub fn gate_up(mut self, order: GateUp) -> Self {
        self.gate_up = Some(order);
        self
    }

    /// Sets whether stacks have outputs as columns, `[experts, inputs, outputs]`, even if the
    /// architecture has them as rows.
    pub fn transposed(mut self, is_transposed: bool) -> Self {
        self.transposed = is_transposed;
        self
    }
}
