"""A network file system that loses its server while trials run."""

from drivers import LAUNCHER
from slurm_cluster.waiting import wait_until
from sweep_journals import attempts_in

# The driver cannot read the journals while there is a file `lost`.
LOSING = """
import errno
import time
from trainyard.planning.attempts import Fold
read_news = Fold.news

def news(fold):
    if Path("lost").exists():
        is_first = not Path("noticed").exists()
        Path("noticed").touch()
        while is_first and not list(Path("results/sweeps/s/trials").glob("*/output-1.ended")):
            time.sleep(0.05)  # the trial ends before it is asked to
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", "results/sweeps/s/claims/1.json")
    return read_news(fold)

Fold.news = news
run_sweep("""
TRIAL = """
trap '' TERM USR1
echo {n} >> ran.txt
while [ ! -e noticed ]; do sleep 0.05; done
echo loss {n}
"""


def test_a_trial_that_ends_after_the_file_system_was_lost_does_not_run_again(drivers):
    project = drivers.project
    sweep = {"command": TRIAL, "grid": {"n": [1]}, "metrics": {"pattern": "loss (?P<loss>{number})"}}
    drivers.write(**sweep)
    (project.folder / "launcher.py").write_text(LAUNCHER.replace("\nrun_sweep(", LOSING))
    first = drivers.start(0)
    wait_until(lambda: drivers.ran(), what="the trial to start", while_running=first)
    (project.folder / "lost").touch()
    assert first.wait(timeout=300) != 0
    assert (project.folder / "noticed").exists(), drivers.output(first)
    (project.folder / "lost").unlink()
    drivers.end(drivers.start(0))
    assert list(drivers.ran().values()) == [1]
    assert [each.outcome for each in attempts_in(drivers.folder)] == ["finished"]
