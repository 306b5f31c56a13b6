//! [`Rank`]: which of the processes of a job this one is.

use super::launcher;
use crate::error::{ErrorKind, RankProblem, Result};

/// The most ranks of a job. It bounds what a plan from a stranger can cost.
pub(super) const MOST_RANKS: usize = 1 << 20;

/// The number of a process among the processes of a job, counted from 0.
///
/// [`from_env`](Rank::from_env) asks the environment, in which each launcher puts it. A program
/// that knows it from elsewhere, such as from MPI itself, gives it by hand.
///
/// ```
/// use safetensors_core::ranks::Rank;
///
/// // Without a launcher the program is the only rank.
/// let rank = Rank::from_env()?.unwrap_or_default();
/// assert!(rank.rank() < rank.world_size());
///
/// let by_hand = Rank::new(5, 8)?.local(1, 4)?;
/// assert_eq!((by_hand.rank(), by_hand.local_rank()), (5, Some(1)));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    rank: usize,
    world_size: usize,
    local_rank: Option<usize>,
    local_world_size: Option<usize>,
}

/// The only rank: 0 of 1.
impl Default for Rank {
    fn default() -> Self {
        Self { rank: 0, world_size: 1, local_rank: Some(0), local_world_size: Some(1) }
    }
}

impl Rank {
    /// The rank `rank` of `world_size`.
    ///
    /// # Errors
    ///
    /// [`RankProblem::WorldSize`] unless the world size is from 1 to 1,048,576;
    /// [`ErrorKind::NoSuchRank`] unless the rank is below it.
    pub fn new(rank: usize, world_size: usize) -> Result<Self> {
        check_world_size(world_size)?;
        if rank >= world_size {
            return Err(ErrorKind::NoSuchRank { rank, world_size }.into());
        }
        Ok(Self { rank, world_size, local_rank: None, local_world_size: None })
    }

    /// Sets the number among the ranks of the same machine, and how many these are.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Rank::new), for these two numbers. The ranks of a machine cannot be
    /// more than the processes of the job either.
    pub fn local(mut self, local_rank: usize, local_world_size: usize) -> Result<Self> {
        Self::new(local_rank, local_world_size)?;
        if local_world_size > self.world_size {
            let (limit, found) = (self.world_size, local_world_size);
            return Err(RankProblem::WorldSize { limit, found }.into());
        }
        self.local_rank = Some(local_rank);
        self.local_world_size = Some(local_world_size);
        Ok(self)
    }

    /// Reads the rank from the environment of the process; `None` if no launcher has set it.
    ///
    /// | launcher | rank | world size | local rank | local world size |
    /// |---|---|---|---|---|
    /// | torchrun, Ray Train | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `LOCAL_WORLD_SIZE` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` | `MPI_LOCALNRANKS` |
    /// | Slurm (`srun`) | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` | `SLURM_LOCALID` | `SLURM_STEP_TASKS_PER_NODE` of `SLURM_NODEID` |
    ///
    /// Several launchers may have set their variables. The first three must then agree, because it
    /// is not known which of them started the process last. Slurm's must agree too, unless they are
    /// those of another process. Slurm is always the outermost launcher: `srun` starts `mpirun` or
    /// `torchrun`, often one for each machine, and never the other way round. So the inner
    /// launcher's numbers are taken
    ///
    /// - if the world sizes differ;
    /// - if `TORCHELASTIC_RUN_ID` is set: torchrun itself has started the process, and numbers its
    ///   processes in the order in which they come.
    ///
    /// A world size without a rank is no rank. A batch script of Slurm has a rank without a world
    /// size, and is no rank either: it is one process, whatever `SLURM_NTASKS` says. `srun` starts
    /// the others.
    ///
    /// # Errors
    ///
    /// [`RankProblem::BadVariable`] for a value that is not a whole number in plain digits;
    /// [`RankProblem::Contradiction`] for a rank that is not below its world size, for a rank
    /// without a world size, and for launchers that disagree. It names both variables with their
    /// values.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// [`from_env`](Rank::from_env) for other variables than the process has. `lookup` returns
    /// the value of the variable of a name.
    ///
    /// ```
    /// use safetensors_core::ranks::Rank;
    ///
    /// let of = |variables: &[(&str, &str)]| {
    ///     Rank::from_variables(|name| {
    ///         let found = variables.iter().find(|(variable, _)| *variable == name);
    ///         found.map(|(_, value)| value.to_string())
    ///     })
    /// };
    /// let torchrun = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")];
    /// let rank = of(&torchrun)?.unwrap();
    /// assert_eq!((rank.rank(), rank.world_size(), rank.local_rank()), (3, 4, Some(1)));
    ///
    /// let error = of(&[("RANK", "4"), ("WORLD_SIZE", "4")]).unwrap_err();
    /// assert!(error.to_string().contains("RANK=4, but WORLD_SIZE=4"), "{error}");
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`from_env`](Rank::from_env).
    pub fn from_variables(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        Ok(launcher::find(&lookup)?)
    }

    /// A rank whose numbers were checked where they came from.
    pub(super) fn checked(
        (rank, world_size): (usize, usize),
        local_rank: Option<usize>,
        local_world_size: Option<usize>,
    ) -> Self {
        Self { rank, world_size, local_rank, local_world_size }
    }

    /// The number of this process, counted from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// The number of this process among the processes of the same machine, if that is known. A
    /// program takes the device of this number.
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }

    /// The number of processes on this machine, if that is known.
    pub fn local_world_size(&self) -> Option<usize> {
        self.local_world_size
    }
}

/// Refuses no ranks, and more than are supported.
pub(super) fn check_world_size(found: usize) -> Result<(), RankProblem> {
    match (1..=MOST_RANKS).contains(&found) {
        true => Ok(()),
        false => Err(RankProblem::WorldSize { limit: MOST_RANKS, found }),
    }
}
