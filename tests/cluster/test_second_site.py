"""A site with other names, other GPUs, another partition and no accounting database."""

import pandas as pd
import pytest
from fault_runs import Sweep, Training, ended_at_last
from slurm_cluster.cluster import Cluster


@pytest.mark.faults
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
