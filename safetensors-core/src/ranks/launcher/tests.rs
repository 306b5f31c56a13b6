//! The rank in the variables of launchers.

use super::*;
use crate::format::error::Error;

fn problem(error: &Error) -> &RankProblem {
    let ErrorKind::Ranks { problem } = error.kind() else { panic!("{error}") };
    problem
}

fn rank(variables: &str) -> Result<Option<Rank>> {
    let variables: Vec<_> =
        variables.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect();
    let found = find(&|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    Ok(found?)
}

/// Rank, world size, local rank, local world size.
type Numbers = (usize, usize, Option<usize>, Option<usize>);

fn numbers(variables: &str) -> Numbers {
    let rank = rank(variables).unwrap().unwrap();
    (rank.rank(), rank.world_size(), rank.local_rank(), rank.local_world_size())
}

#[test]
fn each_launcher_gives_all_numbers() {
    let expected = (5, 8, Some(1), Some(4));
    for variables in [
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4",
        "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
         OMPI_COMM_WORLD_LOCAL_SIZE=4",
        "PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4",
        "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 \
         SLURM_STEP_TASKS_PER_NODE=4(x2)",
    ] {
        assert_eq!(numbers(variables), expected, "{variables}");
    }
    assert_eq!(numbers("SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4"), (2, 4, None, None));
    assert_eq!(numbers("RANK=007 WORLD_SIZE=8"), (7, 8, None, None));
    for none in ["", "SLURM_STEP_NUM_TASKS=4", "WORLD_SIZE=4", "LOCAL_RANK=1", "SLURM_PROCID=0"] {
        assert_eq!(rank(none).unwrap(), None, "{none}");
    }
}

/// The variables that Slurm 22.05 has set in a job of 2 tasks on one machine.
#[test]
fn variables_of_a_real_slurm_give_the_rank() {
    // A process that srun starts.
    let task = "SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 \
                SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2";
    assert_eq!(numbers(task), (1, 2, Some(1), Some(2)));
    // A batch script without srun is alone, and must not wait for ranks that never start.
    let batch = "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=0 \
                 SLURM_TASKS_PER_NODE=2";
    assert_eq!(rank(batch).unwrap(), None);
    // The shell of salloc, if it runs on a node of the job.
    let shell = "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=0 \
                 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1";
    assert_eq!(numbers(shell), (0, 1, Some(0), Some(1)));
    // mpirun of Open MPI, in both.
    let open = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                OMPI_COMM_WORLD_LOCAL_SIZE=2";
    for around in [batch, shell] {
        assert_eq!(numbers(&format!("{open} {around}")), (1, 2, Some(1), Some(2)));
    }
    // mpirun of MPICH starts a daemon by srun, and the daemon starts the ranks.
    let mpich = "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_RANK=1 PMI_SIZE=2 SLURM_LOCALID=0 \
                 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_ID=1 \
                 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1";
    assert_eq!(numbers(mpich), (1, 2, Some(1), Some(2)));
    // srun --mpi=pmi2 sets the numbers twice.
    let pmi2 = format!("PMI_RANK=1 PMI_SIZE=2 {task}");
    assert_eq!(numbers(&pmi2), (1, 2, Some(1), Some(2)));
}

#[test]
fn the_number_of_slurm_tasks_on_a_node_is_parsed() {
    for (node, tasks) in [(0, 4), (1, 4), (2, 3), (3, 1)] {
        let variables = format!(
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=12 SLURM_NODEID={node} \
             SLURM_STEP_TASKS_PER_NODE=4(x2),3,1"
        );
        assert_eq!(numbers(&variables).3, Some(tasks));
    }
    let of_tasks = |tasks: &str| {
        rank(&format!(
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=12 SLURM_NODEID=1 \
             SLURM_STEP_TASKS_PER_NODE={tasks}"
        ))
        .unwrap_err()
    };
    for malformed in ["x", "4(x", "4(x2", "4(2)", "(x2)", "4(x2),", "-1"] {
        let error = of_tasks(malformed);
        assert!(matches!(problem(&error), RankProblem::BadVariable { .. }), "{error}");
    }
    let message = of_tasks("4").to_string();
    assert!(message.contains("SLURM_STEP_TASKS_PER_NODE=4") && message.contains("SLURM_NODEID=1"));
}

#[test]
fn launchers_that_agree_complete_each_other() {
    let both = "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
                OMPI_COMM_WORLD_LOCAL_RANK=0";
    assert_eq!(numbers(both), (1, 2, Some(0), None));
    let with_slurm = "PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 \
                      SLURM_LOCALID=1";
    assert_eq!(numbers(with_slurm), (3, 4, Some(1), None));
}

#[test]
fn a_launcher_that_slurm_has_started_wins() {
    // srun starts torchrun once for each of two machines.
    let torchrun = "RANK=5 WORLD_SIZE=8 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2";
    assert_eq!(numbers(torchrun).0, 5);
    // torchrun numbers its processes in the order in which they come.
    let elastic = "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x SLURM_PROCID=1 \
                   SLURM_STEP_NUM_TASKS=2";
    assert_eq!(numbers(elastic).0, 0);
}

#[test]
fn contradictions_name_both_variables() {
    for (variables, one, other) in [
        ("RANK=4 WORLD_SIZE=4", "RANK=4", "WORLD_SIZE=4"),
        ("RANK=1", "RANK=1", "WORLD_SIZE is not set"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK=2", "WORLD_SIZE=2"),
        (
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
            "LOCAL_RANK=2",
            "LOCAL_WORLD_SIZE=2",
        ),
        ("RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=5", "LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"),
        (
            "RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
            "WORLD_SIZE=1",
            "OMPI_COMM_WORLD_SIZE=4",
        ),
        (
            "RANK=0 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
            "RANK=0",
            "OMPI_COMM_WORLD_RANK=2",
        ),
        (
            "PMI_RANK=1 PMI_SIZE=4 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
            "PMI_RANK=1",
            "SLURM_PROCID=2",
        ),
    ] {
        let error = rank(variables).unwrap_err();
        assert!(matches!(problem(&error), RankProblem::Contradiction { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(one) && message.contains(other), "{variables}: {message}");
    }
}

#[test]
fn values_that_are_no_numbers() {
    for value in ["", "-1", "+1", "1.0", "0x1", "one", "99999999999999999999999", "١"] {
        let error = find(&|name| match name {
            "RANK" => Some(value.to_owned()),
            "WORLD_SIZE" => Some("4".to_owned()),
            _ => None,
        });
        let error = Error::from(error.unwrap_err());
        assert!(error.to_string().contains("the variable RANK"), "{value:?}: {error}");
    }
    for size in ["0", "1048577"] {
        let error = rank(&format!("RANK=0 WORLD_SIZE={size}")).unwrap_err();
        assert!(matches!(problem(&error), RankProblem::WorldSize { .. }), "{error}");
    }
}

#[test]
fn ranks_set_by_hand_are_checked() {
    let rank = Rank::new(7, 8).unwrap().local(3, 4).unwrap();
    assert_eq!((rank.local_rank(), rank.local_world_size()), (Some(3), Some(4)));
    assert_eq!((Rank::default().rank(), Rank::default().world_size()), (0, 1));
    let error = Rank::new(8, 8).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoSuchRank { rank: 8, world_size: 8 }));
    Rank::new(0, 0).unwrap_err();
    Rank::new(0, 8).unwrap().local(4, 4).unwrap_err();
    Rank::new(0, 8).unwrap().local(0, 9).unwrap_err();
}
