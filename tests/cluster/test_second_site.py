"""A site with other names, other GPUs, another partition and no accounting database."""

import pandas as pd
import pytest
from fault_runs import Sweep, Training, ended_at_last
from fault_table import kill_slurmstepd_of_step
from slurm_cluster.cluster import Cluster

pytestmark = pytest.mark.slow


def test_a_sweep_and_a_training_over_two_hosts_run_without_accounting(second_site: Cluster) -> None:
    sweep, training = (kind(second_site, second_site.shared / kind.__name__, nodes=2) for kind in (Sweep, Training))
    with ended_at_last(sweep), ended_at_last(training):
        for run in (sweep, training):
            run.write()
            run.open()
            run.start()
        for run in (sweep, training):
            assert run.wait_for_command() == 0, run.story()
            assert run.is_complete()
            assert len(run.jobs()) == 1
    timeline = pd.read_csv(sweep.seen / "results/sweeps/s/timeline.csv")
    assert set(timeline["gpu_model"]) == {"l40s"}
    assert len(set(timeline["node"])) == 2
    assert sweep.results() == sweep.undisturbed()
    assert len(training.units()) == 3
    assert sweep.leftovers() == []


def test_a_job_ends_soon_after_its_sweep_if_slurmstepd_of_its_steps_was_killed(second_site: Cluster) -> None:
    """Where signals go to the first process of a step only, the sweep is a step within that of Snakemake."""
    run = Sweep(second_site, second_site.shared / "killed", nodes=1)
    with ended_at_last(run):
        run.write()
        run.start()
        run.wait_for_progress()
        kill_slurmstepd_of_step(run)
        run.open()
        run.wait_for_end_of(run.jobs()[0], timeout_seconds=120)
        assert run.wait_for_command() == 0, run.story()
    assert run.is_complete()
    assert run.results() == run.undisturbed()
    assert run.leftovers() == []
