"""What the script of a batch job runs."""

import os
import subprocess
import sys

from trainyard.cluster import job_script
from trainyard.utils.import_path import SCRIPTS


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


# A srun whose slurmstepd was killed: it does not notice that its task has ended.
WAITS_FOR_EVER = """
import sys
from trainyard.cluster import job_script
job_script.SRUN_SECONDS = 0.2
srun = ["sh", "-c", '"$@"; exec sleep 3600', "srun"]
sys.exit(job_script.main([*srun, sys.executable, job_script.__file__, job_script.TASK, job_script.ENDED, "ends", "7"]))
"""


def test_the_job_ends_soon_after_the_task_of_its_step_with_the_same_exit_code(tmp_path):
    (tmp_path / "ends.py").write_text("import sys; print('it runs'); sys.exit(int(sys.argv[1]))")
    environment = {"PYTHONPATH": str(SCRIPTS), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[0] == "it runs"
    assert "srun does not end although its task has ended" in done.stdout
