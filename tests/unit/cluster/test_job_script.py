"""What the script of a batch job runs."""

import subprocess
import sys

from trainyard.cluster import job_script


def test_options_of_slurm_are_removed_and_names_of_the_job_stay():
    of_job = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "SLURM_RESTART_COUNT": "1", "HOME": "/h"}
    options = {"SLURM_NTASKS": "2", "SRUN_CPUS_PER_TASK": "2", "SBATCH_MEM": "1"}
    assert job_script.without_options(of_job | options) == of_job


def test_it_becomes_its_command_with_the_same_exit_code():
    command = [sys.executable, job_script.__file__, "sh", "-c", "echo $SLURM_NTASKS $SLURM_JOB_ID; exit 7"]
    done = subprocess.run(command, env={"SLURM_NTASKS": "2", "SLURM_JOB_ID": "3"}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("3\n", 7)


def test_a_command_that_is_absent_is_one_line():
    done = subprocess.run([sys.executable, job_script.__file__, "no-srun"], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("no-srun: No such file or directory\n", 1)
