"""What launchers have set for rank 1 of several, as it was seen; of what isn't read here, little is kept."""

from __future__ import annotations

OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "1910636545",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI2": "1910636544.0;tcp4://127.0.0.1:36993",
    "PMIX_SERVER_URI21": "1910636544.0;tcp4://127.0.0.1:36993",
    "PMIX_SERVER_URI3": "1910636544.0;tcp4://127.0.0.1:36993",
    "PMIX_SERVER_URI4": "1910636544.0;tcp4://127.0.0.1:36993",
    "PMIX_SERVER_URI41": "1910636544.0;tcp4://127.0.0.1:36993",
    "PMIX_VERSION": "4.2.2rc2",
}
"""Of Open MPI 4.1.4 of Debian 12."""

OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_VERSION": "5.0.11",
    "PMIX_NAMESPACE": "prterun-node1-23826@1",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI2": "prterun-node1-23826@0.0;tcp4://127.0.0.1:56719",
    "PMIX_SERVER_URI41": "prterun-node1-23826@0.0;tcp4://127.0.0.1:56719",
    "PRTE_LAUNCHED": "1",
}

OPEN_MPI_TWO_HOSTS = OPEN_MPI_4 | {
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_UNIVERSE_SIZE": "4",
    "PMIX_NAMESPACE": "834404353",
    "PMIX_SERVER_URI4": "834404352.1;tcp4://127.0.0.1:38419",
}

HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "8",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
"""Of MPICH 4.0.2; 5.0.2 adds PMI_HOSTNAME."""

HYDRA_TWO_HOSTS = HYDRA | {"MPI_LOCALNRANKS": "3", "PMI_SIZE": "4"}

SRUN = {
    "SLURM_CLUSTER_NAME": "one",
    "SLURM_GTIDS": "0,1",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "na1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_LAUNCHER_PORT": "42301",
    "SLURM_STEP_NODELIST": "na1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
"""Of Slurm 22.05.8."""

SRUN_PMI2 = SRUN | {"PMI_FD": "11", "PMI_JOBID": "2.0", "PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_MPI_TYPE": "pmi2"}

SRUN_TWO_HOSTS = SRUN | {
    "SLURM_GTIDS": "0,1,2",
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NODELIST": "na[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_LAUNCHER_PORT": "46541",
    "SLURM_STEP_NODELIST": "na[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
}
