"""What the script of a batch job runs."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from trainyard.cluster import job_script
from trainyard.utils.import_path import SCRIPTS


def test_options_of_slurm_are_removed_and_names_of_the_job_stay():
    of_job = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "SLURM_RESTART_COUNT": "1", "HOME": "/h"}
    options = {"SLURM_NTASKS": "2", "SRUN_CPUS_PER_TASK": "2", "SBATCH_MEM": "1"}
    assert job_script.without_options(of_job | options) == of_job


def test_a_command_that_is_absent_is_one_line():
    done = subprocess.run([sys.executable, job_script.__file__, "no-srun"], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("no-srun: No such file or directory\n", 1)


# A srun whose slurmstepd was killed: it does not notice that its task has ended.
WAITS_FOR_EVER = """
import os, sys
from trainyard.cluster import job_script
job_script.SRUN_SECONDS = 0.2
srun = ["sh", "-c", '"$@"; exec sleep 3600', "srun"]
task = [sys.executable, job_script.__file__, job_script.TASK, job_script.ENDED, sys.argv[1], "7"]
sys.exit(job_script.run_step([*srun, *task], os.environ))
"""
ENVIRONMENT = {"PYTHONPATH": str(SCRIPTS), "PATH": os.environ["PATH"]}


@pytest.mark.parametrize("program", ["ends.py", "./ends.py"])
def test_the_job_ends_soon_after_the_task_of_its_step_with_the_same_exit_code(tmp_path, program):
    (tmp_path / "beside.py").touch()
    (tmp_path / "ends.py").write_text("import beside, sys; print('it runs'); sys.exit(int(sys.argv[1]))")
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER, program], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == ["it runs", job_script.SRUN_ENDED]


def test_the_job_also_ends_if_nobody_reads_its_output(tmp_path):
    """slurmstepd of the step that takes it may have been killed, too."""
    (tmp_path / "ends.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    line = f"{shlex.join([sys.executable, '-c', WAITS_FOR_EVER, 'ends.py'])}; echo $? > code"
    subprocess.run(["bash", "-c", f"({line}) | true"], env=ENVIRONMENT, cwd=tmp_path, check=True)
    assert (tmp_path / "code").read_text() == "7\n"


def test_a_task_writes_to_the_output_of_the_job_itself(tmp_path):
    """slurmstepd of the step, which takes what tasks write otherwise, may be killed."""
    written = "print('printed', flush=True); os.system('echo child'); print('error', file=sys.stderr)"
    (tmp_path / "writes.py").write_text(f"import os, sys; {written}")
    program = WAITS_FOR_EVER.replace('"$@"', '"$@" >/dev/full 2>&1')
    done = subprocess.run(
        [sys.executable, "-c", program, "writes.py"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["printed", "child", job_script.SRUN_ENDED]
    assert (done.stderr, done.returncode) == ("error\n", 0)


def test_a_signal_is_handled_during_the_wait_whichever_thread_gets_it():
    """One that arrives just before the main thread waits does not interrupt it either."""

    def signal_this_thread():
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    with subprocess.Popen(["sleep", "30"]) as process:
        before = signal.signal(signal.SIGUSR1, lambda *_: process.terminate())
        try:
            threading.Thread(target=signal_this_thread).start()
            assert job_script.wait_as_shell(process) == 128 + signal.SIGTERM
        finally:
            signal.signal(signal.SIGUSR1, before)
