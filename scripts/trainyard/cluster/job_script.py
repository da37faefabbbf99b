"""Run a command of a batch job without the variables that would set options of its srun: `job_script.py COMMAND...`.

sbatch exports its own options, such as SLURM_NTASKS or SLURM_MEM_PER_NODE, to the job, and srun reads them as defaults
that may contradict its command line. Variables that name the job stay. This file runs first in each job, so it
imports nothing of Trainyard.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

OPTIONS: Final = ("SLURM_", "SRUN_", "SBATCH_")
KEPT: Final = {
    "SLURM_CONF",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_RESTART_COUNT",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
}


def without_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that Slurm's commands read as options."""
    return {name: value for name, value in environment.items() if name in KEPT or not name.startswith(OPTIONS)}


def main(command: list[str]) -> NoReturn:
    """Become the command."""
    try:
        os.execvpe(command[0], command, without_options(os.environ))
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
