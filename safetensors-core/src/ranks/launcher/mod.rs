//! Reads the rank from the variables of launchers.

#[cfg(test)]
mod tests;

use super::Rank;
use super::rank::check_world_size;
use crate::format::error::{ErrorKind, RankProblem, Result};

struct Launcher {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: Option<&'static str>,
}

/// These start the processes of a job themselves.
const INNER: [Launcher; 3] = [
    Launcher {
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: Some("LOCAL_WORLD_SIZE"),
    },
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Launcher {
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: Some("MPI_LOCALNRANKS"),
    },
];

// `SLURM_NTASKS` is not the world size: in a batch script, in an interactive shell, and in the
// daemons that `mpirun` starts by srun it counts the tasks of the entire job.
const SLURM: Launcher = Launcher {
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world_size: None,
};

#[derive(Clone, Copy)]
struct Number {
    variable: &'static str,
    value: usize,
}

impl Number {
    fn shown(self) -> String {
        format!("{}={}", self.variable, self.value)
    }
}

#[derive(Clone, Copy)]
struct LauncherValues {
    rank: Number,
    world_size: Number,
    local_rank: Option<Number>,
    local_world_size: Option<Number>,
}

impl Rank {
    /// Reads the rank from the environment of the process; `None` if no launcher has set it.
    ///
    /// | launcher | rank | world size | local rank | local world size |
    /// |---|---|---|---|---|
    /// | torchrun, Ray Train | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `LOCAL_WORLD_SIZE` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` | `MPI_LOCALNRANKS` |
    /// | Slurm (`srun`) | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` | `SLURM_LOCALID` | `SLURM_STEP_TASKS_PER_NODE` of `SLURM_NODEID` |
    ///
    /// If several launchers have set their variables, they must agree. But Slurm's are ignored next
    /// to others if the world sizes differ, or if `TORCHELASTIC_RUN_ID` is set: torchrun numbers
    /// its processes in the order in which they come. A batch script of Slurm has a rank without a
    /// world size, which is no rank.
    ///
    /// # Errors
    ///
    /// [`RankProblem::BadVariable`] for a value that is not a number in plain digits;
    /// [`RankProblem::Contradiction`] for a rank that is not below its world size, or has none, and
    /// for launchers that disagree.
    pub fn from_env() -> Result<Option<Self>> {
        let lookup =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Ok(find(&lookup)?)
    }
}

type Lookup<'l> = &'l dyn Fn(&str) -> Option<String>;

pub(super) fn find(lookup: Lookup<'_>) -> Result<Option<Rank>, ErrorKind> {
    let mut found: Option<LauncherValues> = None;
    for launcher in &INNER {
        let Some(told) = read(launcher, lookup)? else { continue };
        found = Some(match found {
            None => told,
            Some(first) => agreed(first, told)?,
        });
    }
    // A batch script has the number of a rank, but only a step of srun has a world size.
    let outer = if lookup(SLURM.world_size).is_some() { read(&SLURM, lookup)? } else { None };
    let told = match (found, outer) {
        (Some(inner), Some(outer)) if is_nested(inner, outer, lookup) => inner,
        (Some(inner), Some(outer)) => agreed(inner, outer)?,
        (Some(told), None) | (None, Some(told)) => told,
        (None, None) => return Ok(None),
    };
    Ok(Some(Rank {
        rank: told.rank.value,
        world_size: told.world_size.value,
        local_rank: told.local_rank.map(|number| number.value),
        local_world_size: told.local_world_size.map(|number| number.value),
    }))
}

/// Returns `true` if Slurm's numbers belong to the process that started the inner launcher.
// Slurm is always the outermost launcher: `srun` starts `mpirun` or `torchrun`, often one for each
// machine, and never the other way round.
fn is_nested(inner: LauncherValues, outer: LauncherValues, lookup: Lookup<'_>) -> bool {
    inner.world_size.value != outer.world_size.value
        || (inner.rank.variable == INNER[0].rank && lookup("TORCHELASTIC_RUN_ID").is_some())
}

fn read(launcher: &Launcher, lookup: Lookup<'_>) -> Result<Option<LauncherValues>, ErrorKind> {
    let Some(rank) = number(launcher.rank, lookup)? else { return Ok(None) };
    let Some(world_size) = number(launcher.world_size, lookup)? else {
        let other = format!("{} is not set", launcher.world_size);
        return Err(RankProblem::Contradiction { one: rank.shown(), other }.into());
    };
    let local_rank = number(launcher.local_rank, lookup)?;
    let local_world_size = match launcher.local_world_size {
        Some(variable) => number(variable, lookup)?,
        None => tasks_on_node(lookup)?,
    };
    check_world_size(world_size.value)?;
    below(rank, world_size)?;
    if let Some(local_world_size) = local_world_size {
        let is_part = (1..=world_size.value).contains(&local_world_size.value);
        is_part.then_some(()).ok_or_else(|| contradiction(local_world_size, world_size))?;
    }
    if let Some(local_rank) = local_rank {
        below(local_rank, local_world_size.unwrap_or(world_size))?;
    }
    Ok(Some(LauncherValues { rank, world_size, local_rank, local_world_size }))
}

fn agreed(one: LauncherValues, other: LauncherValues) -> Result<LauncherValues, ErrorKind> {
    let pairs = [
        (Some(one.world_size), Some(other.world_size)),
        (Some(one.rank), Some(other.rank)),
        (one.local_world_size, other.local_world_size),
        (one.local_rank, other.local_rank),
    ];
    for (one, other) in pairs {
        if let (Some(one), Some(other)) = (one, other)
            && one.value != other.value
        {
            return Err(contradiction(one, other));
        }
    }
    Ok(LauncherValues {
        local_rank: one.local_rank.or(other.local_rank),
        local_world_size: one.local_world_size.or(other.local_world_size),
        ..one
    })
}

fn below(rank: Number, world_size: Number) -> Result<(), ErrorKind> {
    if rank.value < world_size.value { Ok(()) } else { Err(contradiction(rank, world_size)) }
}

fn contradiction(one: Number, other: Number) -> ErrorKind {
    RankProblem::Contradiction { one: one.shown(), other: other.shown() }.into()
}

fn number(variable: &'static str, lookup: Lookup<'_>) -> Result<Option<Number>, ErrorKind> {
    let Some(text) = lookup(variable) else { return Ok(None) };
    match digits(&text) {
        Some(value) => Ok(Some(Number { variable, value })),
        None => Err(bad(variable, "a whole number in plain digits", text)),
    }
}

// `parse` would take a sign.
fn digits(text: &str) -> Option<usize> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

fn bad(variable: &str, expected: &'static str, found: String) -> ErrorKind {
    RankProblem::BadVariable { variable: variable.into(), expected, found }.into()
}

/// `4(x2),3` means 4 tasks on each of two machines, and 3 on the next.
fn tasks_on_node(lookup: Lookup<'_>) -> Result<Option<Number>, ErrorKind> {
    let variable = "SLURM_STEP_TASKS_PER_NODE";
    let (Some(text), Some(node)) = (lookup(variable), number("SLURM_NODEID", lookup)?) else {
        return Ok(None);
    };
    let mut nodes = 0_usize;
    let mut found = None;
    for group in text.split(',') {
        let (tasks, times) = match group.strip_suffix(')').map(|group| group.split_once("(x")) {
            Some(Some((tasks, times))) => (digits(tasks), digits(times)),
            Some(None) => (None, None),
            None => (digits(group), Some(1)),
        };
        let (Some(value), Some(times)) = (tasks, times) else {
            return Err(bad(variable, "numbers of tasks, such as 4(x2),3", text));
        };
        nodes = nodes.saturating_add(times);
        if node.value < nodes {
            found.get_or_insert(Number { variable, value });
        }
    }
    match found {
        Some(_) => Ok(found),
        None => {
            let one = format!("{variable}={text}");
            Err(RankProblem::Contradiction { one, other: node.shown() }.into())
        }
    }
}
