"""`gpus_per_trial: 2`: a training in a sweep is that of scale 1x2 of a study, and ends as other trials do."""

import re
import signal

import pandas as pd
import pytest
from project import TINY, TROUBLE, alive, with_words
from slurm_cluster.waiting import wait_until
from sweep_journals import attempts_in

pytestmark = pytest.mark.slow
TRAIN = {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 3}
SLOTS = {"gpus_per_node": 2, "gpus_per_trial": 2, "cpus_per_trial": 2}
MEASURED = ["images_per_second", "seconds", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "epoch_start_seconds"]


def sweep(project, trials, *, slots=SLOTS, **options):
    """The command of a sweep of these trials, whose model may have trouble."""
    (project.folder / "trouble.py").write_text(TROUBLE)
    options |= {"dataset": "tiny", "train": {**TRAIN, "model": "trouble:build", "model_args": {}}}
    project.write({**TINY, "sweeps": {"s": {**options, "trials": trials, "slots": slots}}})
    project.stage()
    return project.script("sweep", "--sweep", "s")


def attempts(project):
    return attempts_in(project.results / "sweeps/s")


def rows_of(project):
    """The rows of each attempt by its number."""
    return {each.number: each.epochs for each in attempts(project)}


def ranks(project):
    """The processes of ranks that run, and their agents."""
    return with_words(f"kinds.train_rank {project.folder}")


def table(project, name="trials"):
    return pd.read_csv(project.results / f"sweeps/s/{name}.csv")


def test_its_metrics_are_those_of_scale_1x2_bit_for_bit(project):
    study = {"dataset": "tiny", "train": {**TRAIN, "lr": 0.02}, "scales": ["1x2"], "mode": "strong"}
    sweep = {"dataset": "tiny", "train": TRAIN, "grid": {"lr": [0.01, 0.02]}, "slots": SLOTS}
    project.write({**TINY, "sweeps": {"s": sweep}, "scaling": {"c": study}})
    project.stage()
    project.run(*project.script("sweep", "--sweep", "s"))
    project.run(*project.script("train", "--study", "c", "--scale", "1x2"))
    expected = pd.read_csv(project.results / "scaling/c/1x2/history.csv").drop(columns=MEASURED)
    trial = table(project).query("lr == 0.02").iloc[0]
    found = table(project, "epochs").query(f"trial == {trial['trial']!r}").reset_index(drop=True)[list(expected)]
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    assert trial["best_val_accuracy"] == expected["val_accuracy"].max()
    assert trial["micro_batch"] == 16
    assert set(table(project, "timeline")["gpus_per_trial"]) == {2}


# Trouble on rank 1: the trial's options, the outcomes of its attempts, and the error of the first one.
FAILURES = [
    ({"model_args.trouble": "raise"}, ["failed", "finished"], r"rank 1 on \S+ ended the training: .*planned trouble"),
    ({"model_args.trouble": "kill"}, ["failed", "finished"], r"rank 1 on \S+ ended the training: .*SIGKILL"),
    ({"model_args.trouble": "memory"}, ["finished"], ""),
    (
        {"model_args.trouble": "memory later"},
        ["failed", "finished"],
        r"rank 1 on \S+ ended the training: .*out of memory in epoch 2, step 1",
    ),
    ({"lr": 1e30}, ["diverged"], "the loss became NaN or infinite in epoch 1"),
]


def test_a_failure_of_one_rank_is_that_of_its_trial(project):
    trials = [{"seed": seed, **options} for seed, (options, _, _) in enumerate(FAILURES)]
    project.run(*sweep(project, trials))
    found = table(project).set_index("seed")
    for seed, (_, outcomes, error) in enumerate(FAILURES):
        of_trial = [each for each in attempts(project) if each.trial == found.loc[seed, "trial"]]
        assert [each.outcome for each in of_trial] == outcomes
        assert re.search(error, of_trial[0].error)
    assert list(found.loc[:3, "micro_batch"]) == [16, 16, 8, 8]
    assert not ranks(project)


def test_it_continues_after_a_signal_and_a_killed_driver_on_another_number_of_gpus(project):
    (project.folder / "hold").touch()
    command = sweep(project, [{"seed": 1}])
    for number, end in enumerate((signal.SIGTERM, signal.SIGKILL), 1):
        started = project.start(*command)
        wait_until(lambda attempt=number: rows_of(project).get(attempt), what="an epoch", while_running=started)
        running = ranks(project)
        started.send_signal(end)
        output, _ = started.communicate()
        assert started.returncode, output
        wait_until(lambda of_before=running: not alive(of_before), what="the end of the ranks")
    (project.folder / "hold").unlink()
    project.run(*sweep(project, [{"seed": 1}], slots={"gpus_per_node": 1}))
    assert [each.outcome for each in attempts(project)] == ["interrupted", "interrupted", "finished"]
    first, second, third = rows_of(project).values()
    assert first[0] == second[0] == third[0]  # also its seconds
    assert [row["epoch"] for row in third] == [1, 2, 3]
    assert list(table(project, "timeline")["gpus_per_trial"]) == [2, 2, 1]


def test_trials_on_several_nodes_need_a_job_of_slurm(project):
    started = project.start(*sweep(project, [{"seed": 1}], slots={"nodes_per_trial": 2, "gpus_per_node": 1}))
    output, _ = started.communicate()
    assert started.returncode
    assert (
        "scale 2x1 needs 2 nodes, but this is not a Slurm job: run Snakemake with `--profile profiles/slurm`" in output
    )
    assert attempts(project) == []


# Each rank of a trial; all trials run at the same time, as long as they have not met.
RANK = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"met-{sys.argv[2]}").touch()
while len(list(Path().glob("met-*"))) < 2:
    time.sleep(0.05)
dist.barrier()
if os.environ["RANK"] == "0":
    first, second = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    print(f"ranks={dist.get_world_size()} port={os.environ['MASTER_PORT']} first={first} second={second}")
"""


def test_a_command_has_its_gpus_and_a_port_of_its_own(project):
    (project.folder / "rank.py").write_text(RANK)
    names = ("ranks", "port", "first", "second")
    command = {
        "command": "torchrun --nproc-per-node {gpus} --master-port {port} rank.py --seed {seed}",
        "metrics": {"pattern": " ".join(f"{name}=(?P<{name}>{{number}})" for name in names)},
    }
    function = {"function": "gpus:run"}
    (project.folder / "gpus.py").write_text("def run(config, context):\n    context.report(gpus=context.gpus)\n")
    trials = {"trials": [{"seed": 1}, {"seed": 2}], "slots": {"gpus_per_node": 4, "gpus_per_trial": 2}}
    project.write({"sweeps": {"s": {**command, **trials}, "f": {**function, **trials}}})
    project.run(*project.script("sweep", "--sweep", "s"))
    found = table(project)
    assert list(found["ranks"]) == [2, 2]
    assert found["port"].nunique() == 2
    assert sorted([*found["first"], *found["second"]]) == [0, 1, 2, 3]
    project.run(*project.script("sweep", "--sweep", "f"))
    assert list(pd.read_csv(project.results / "sweeps/f/trials.csv")["gpus"]) == [2, 2]
