"""A run of the comparison with peers ends when nothing is left that could go on."""

from dataclasses import replace
from types import SimpleNamespace

from peers.participants import participants
from peers.runner import Run
from peers.works import works


class EmptyCluster:
    """A cluster without jobs, on whose login node commands run."""

    def command(self, command, cwd):
        return ["env", "-C", cwd, *command]

    def run(self, command, **_):
        return SimpleNamespace(stdout="")


def test_a_run_whose_submission_fails_does_not_wait_for_a_first_trial(tmp_path):
    peer, work = participants()["sbatch"], works(scale=1, short_trials=10)["trouble"]
    run = Run(EmptyCluster(), replace(peer, submit=("exit 3",)), work, 1, tmp_path / "run", patience=20)
    run._prepare()
    run._do()
    assert run.notes == ["a command exited 3"]
    assert (run.killed, run.typed) == (None, 0), "there was nothing to kill, and nothing to resume"
