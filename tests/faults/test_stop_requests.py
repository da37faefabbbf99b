"""At SIGTERM, trainings and trials save their state within a step, and the next run goes on from there."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from project import TINY, Project, alive, child_named
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from sweep_journals import attempts_in, journal_text
from trainyard.planning.journal import journal_files

# A model that writes a line per step and rank. From step `waits_at` on, each step waits for a file `go`, or until this
# process has been told to stop.
STEPS = """
import os, signal, time
from pathlib import Path
import torch
from trainyard.training.models import SmallConvNet

HERE = Path(__file__).parent

def is_told():
    return getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "is_made", False)

class Gated(SmallConvNet):
    def forward(self, images):
        images = torch.nn.functional.dropout(images, 0.1, self.training)  # uses the generator of this rank
        if self.training and images.abs().unique().numel() > 4:  # the images of the warm-up are black
            steps = HERE / f"steps-{os.environ.get('RANK', 0)}"
            with open(steps, "a") as file:
                file.write("step\\n")
            while len(steps.read_text().splitlines()) >= self.waits_at and not (HERE / "go").exists() and not is_told():
                time.sleep(0.02)
        return super().forward(images)

def build(*, channels, classes, waits_at=1000):
    model = Gated(channels=channels, classes=classes, width=4)
    model.waits_at = waits_at
    return model
"""
# Eight steps per epoch.
TRAIN = {"model": "gated:build", "batch_size": 8, "epochs": 3, "lr": 0.01, "augment": {"flip": True, "crop_padding": 1}}
NOISE = {"seconds", "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "epoch_start_seconds"}


@pytest.fixture
def gated(project: Project) -> Project:
    (project.folder / "gated.py").write_text(STEPS)
    return project


@pytest.fixture
def temporary(project: Project) -> Iterator[Path]:
    """The folder for temporary files of the project; its path is short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    project.environment["TMPDIR"] = str(folder)
    yield folder
    shutil.rmtree(folder)


SCALE = "1x2"
# Eight steps per epoch, as two ranks share each batch.
SCALING = {"dataset": "tiny", "train": {**TRAIN, "batch_size": 4, "model_args": {"waits_at": 12}}, "scales": [SCALE]}


def steps_of(project: Project) -> int:
    path = project.folder / "steps-0"  # of the only rank, or the first one
    return len(path.read_text().splitlines()) if path.exists() else 0


def history(project: Project) -> list[dict]:
    table = pd.read_csv(project.results / f"scaling/s/{SCALE}/history.csv")
    return table.drop(columns=list(NOISE)).to_dict("records")


def signal_group(process: subprocess.Popen, number: int) -> None:
    os.killpg(process.pid, number)


def signal_twice(process: subprocess.Popen, number: int) -> None:
    for _ in range(2):
        process.send_signal(number)


ENDINGS = {
    "preemption": (signal_twice, signal.SIGTERM),
    "timeout": (signal_group, signal.SIGTERM),  # the program of this name, and CI systems
    "Ctrl-C": (signal_group, signal.SIGINT),
    "closed terminal": (signal_group, signal.SIGHUP),
}


def train_command(project: Project) -> list[str]:
    return project.script("train", "--study", "s", "--scale", SCALE)


def close_terminal_under_nohup(project: Project, *, when: Callable[[], bool]) -> None:
    """Run a scale that ends once there is a file `go`. torchrun handles SIGHUP if it is not told otherwise."""
    started = project.start("nohup", *train_command(project))
    wait_until(when, what="two ranks", while_running=started)
    signal_group(started, signal.SIGHUP)
    (project.folder / "go").touch()
    output, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 0, output


def test_a_training_stops_within_a_step_and_resumes_bit_identically(gated):
    """The signals arrive in the middle of the second epoch. Under nohup, a closed terminal does not disturb it."""
    gated.write({**TINY, "scaling": {"s": SCALING}})
    gated.stage()
    close_terminal_under_nohup(gated, when=lambda: steps_of(gated) == 12)
    undisturbed = history(gated)
    gated.results.joinpath("scaling").rename(gated.folder / "before")
    for path in (gated.folder / "go", *gated.folder.glob("steps-*")):
        path.unlink()

    for step, ending in enumerate(("preemption", "closed terminal"), 4):
        started = gated.start(*train_command(gated))
        wait_until(lambda step=step: steps_of(gated) == 8 + step, what="the step", while_running=started)
        send, number = ENDINGS[ending]
        send(started, number)
        output, _ = started.communicate(timeout=PATIENCE_SECONDS)
        assert started.returncode == 1, output
        assert re.search(rf"stopped by a signal to rank [01], in epoch 2 of 3, after step {step} of 8", output), output
        assert "the same command continues from here" in output
        assert "Traceback" not in output
    assert "continuing after epoch 1 and step 4, from" in output
    (gated.folder / "go").touch()
    done = gated.run(*train_command(gated))
    assert "continuing after epoch 1 and step 5, from" in done.stdout
    assert steps_of(gated) == 24, "no step is repeated"
    assert history(gated) == undisturbed


@pytest.mark.slow
def test_a_closed_terminal_does_not_end_a_script_under_nohup(project):
    lines = ["import os, time", "from pathlib import Path", "Path(os.environ['RANK'] + '-is-up').touch()"]
    lines += ["while not Path('go').exists(): time.sleep(0.02)", "print('loss 1')"]
    (project.folder / "script.py").write_text("\n".join(lines))
    study = {"script": "script.py", "scales": [SCALE], "metrics": {"pattern": "loss (?P<loss>{number})"}}
    project.write({"scaling": {"s": study}})
    close_terminal_under_nohup(project, when=lambda: len([*project.folder.glob("*-is-up")]) == 2)


# A function and a command that write their epochs to a checkpoint. From the third epoch on, each epoch waits for a file
# `go`, or until the program has been told to stop.
PROGRAMS = """
import signal, sys, time
from pathlib import Path

def wait_in(epoch, is_told):
    while epoch >= 3 and not Path("go").exists() and not is_told():
        time.sleep(0.02)

def run(config, context):
    kept = context.checkpoint_dir / "epoch"
    first = int(kept.read_text()) if kept.exists() else 0
    for epoch in range(first + 1, 9):
        with open("function-epochs", "a") as file:
            file.write(f"{epoch}\\n")
        wait_in(epoch, lambda: context.time_is_up)
        context.report(epoch=epoch, loss=1 / epoch)
        kept.write_text(str(epoch))
        if context.time_is_up:
            context.interrupt()

def command(lr, folder, resume_from):
    first = int(Path(resume_from).read_text()) if resume_from else 0
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    for epoch in range(first + 1, 9):
        with open("command-epochs", "a") as file:
            file.write(f"{epoch}\\n")
        wait_in(epoch, lambda: told)
        print(f"epoch {epoch} loss {1 / epoch}", flush=True)
        time.sleep(2 if told else 0)  # saving takes a while
        (Path(folder) / "kept.pt").write_text(str(epoch))
        if told:
            sys.exit(1)

if __name__ == "__main__":
    command(*sys.argv[1:])
"""
SWEEPS = {
    "function": {"function": "programs:run", "trials": [{"lr": 0.1}]},
    "command": {
        "command": "python programs.py {lr} {trial_dir} {resume_from} && true",
        "trials": [{"lr": 0.1}],
        "checkpoint": "*.pt",
        "metrics": {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>\S+)"},
    },
    "training": {"dataset": "tiny", "train": {**TRAIN, "model_args": {"waits_at": 12}}, "trials": [{"lr": 0.1}]},
}
ENDINGS_OF = {"command": list(ENDINGS), "training": ["preemption", "timeout"], "function": ["preemption", "Ctrl-C"]}


def tries(project: Project, name: str):
    return attempts_in(project.results / f"sweeps/{name}")


def is_in_epoch(project: Project, kind: str, epoch: int) -> bool:
    """Whether the program of a sweep is in this epoch."""
    epochs = project.folder / f"{kind}-epochs"
    return epochs.exists() and epochs.read_text().endswith(f"{epoch}\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENDINGS_OF)
def test_a_trial_saves_its_state_when_it_is_told_to_end_and_resumes_from_it(gated, temporary, kind):
    """In the middle of its third epoch and of those after it, a training in that of its second."""
    (gated.folder / "programs.py").write_text(PROGRAMS)
    gated.write({**TINY, "sweeps": {kind: SWEEPS[kind]}})
    if kind == "training":
        gated.stage()
    command = gated.script("sweep", "--sweep", kind)
    for past, ending in enumerate(ENDINGS_OF[kind]):
        started = gated.start(*command)
        wait_until(
            lambda past=past: (
                steps_of(gated) == 12 + past if kind == "training" else is_in_epoch(gated, kind, 3 + past)
            ),
            what="the trial to be in an epoch",
            while_running=started,
        )
        family = psutil.Process(started.pid).children(recursive=True)
        send, number = ENDINGS[ending]
        send(started, number)
        output, _ = started.communicate(timeout=PATIENCE_SECONDS)
        assert started.returncode == 130, (ending, output)
        assert "1 running trial may take up to 30 s to save a checkpoint" in output
        assert "interrupted: finished work is kept" in output
        assert "Traceback" not in output
        assert [each.outcome for each in tries(gated, kind)] == ["interrupted"] * (past + 1)
        assert [each for each in temporary.iterdir() if not each.name.startswith("torchinductor_")] == []  # of torch
        wait_until(lambda family=family: not alive(family), what=f"all processes to end after {ending}")
    (gated.folder / "go").touch()
    gated.run(*command)
    *interrupted, last = tries(gated, kind)
    assert (len(interrupted), last.outcome) == (len(ENDINGS_OF[kind]), "finished")
    if kind == "command":
        assert last.resumed.name == "kept.pt"
    if kind == "training":
        assert steps_of(gated) == 24, "no step is repeated"
        assert [row["epoch"] for row in last.epochs] == [1, 2, 3]
    else:
        assert (gated.folder / f"{kind}-epochs").read_text().split() == list("12345678"), "no epoch is repeated"
        assert last.metrics["loss"] == 1 / 8


@pytest.mark.slow
def test_snakemake_and_its_sweep_end_and_continue_together(project):
    """`timeout` and Ctrl-C send the signal to both, `kill -INT <pid>` to Snakemake alone."""
    (project.folder / "programs.py").write_text(PROGRAMS)
    project.write({"sweeps": {"command": SWEEPS["command"]}})
    command = project.snakemake_command("--", "results/sweeps/command/trials.csv")
    alone = (subprocess.Popen.send_signal, signal.SIGINT)
    for past, (send, number) in enumerate((ENDINGS["timeout"], ENDINGS["Ctrl-C"], alone)):
        started = project.start(*command)
        wait_until(lambda past=past: is_in_epoch(project, "command", 3 + past), what="an epoch", while_running=started)
        family = psutil.Process(started.pid).children(recursive=True)
        send(started, number)
        output, _ = started.communicate(timeout=PATIENCE_SECONDS)
        assert started.returncode == (130 if number == signal.SIGINT else 1), output
        wait_until(lambda family=family: not alive(family), what=f"all processes to end after signal {number}")
        assert [each.outcome for each in tries(project, "command")] == ["interrupted"] * (past + 1), output
        if number == signal.SIGINT:
            first, *lines = output.partition("Trainyard: ")[2].splitlines()
            assert first.startswith("interrupted after ")
            assert lines[-1].startswith("  next      go on with what has finished: ")
            assert lines[:-1] == [
                "  not done  sweep command",
                "  answers   sweep command: 0 trials finished, 0 failed, 1 to run",
                "              no trial has finished",
                lines[3],
                f"  results   {project.results}: tables/, logs/",
            ]
            assert lines[3].endswith(" of slots on CPUs used, no GPU time")
            assert not re.search("Exception|Error|Traceback", output), output
    (project.folder / "go").touch()
    project.run(*command)
    assert [each.outcome for each in tries(project, "command")] == ["interrupted"] * 3 + ["finished"]
    assert (project.folder / "command-epochs").read_text().split() == list("12345678"), "no epoch is repeated"


STARTING: dict[str, Callable[[Project, Path, psutil.Process], bool]] = {
    "before Ray": lambda project, temporary, driver: any(temporary.glob("ty-ray-*")),
    "with Ray's head": lambda project, temporary, driver: child_named("gcs_server", driver) is not None,
    "with Ray's raylet": lambda project, temporary, driver: child_named("raylet", driver) is not None,
    "after Ray": lambda project, temporary, driver: "ray_up" in journal_text(project.results / "sweeps/s"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("before Ray", signal.SIGTERM),
        ("with Ray's head", signal.SIGTERM),
        ("with Ray's head", signal.SIGINT),
        ("with Ray's raylet", signal.SIGTERM),
        ("with Ray's raylet", signal.SIGINT),
        ("after Ray", signal.SIGHUP),
    ],
)
def test_a_sweep_that_is_told_to_end_while_it_starts_leaves_nothing(project, temporary, when, number):
    (project.folder / "programs.py").write_text(PROGRAMS)
    project.write({"sweeps": {"s": SWEEPS["function"]}})
    started = project.start(*project.script("sweep", "--sweep", "s"))
    driver = psutil.Process(started.pid)
    wait_until(lambda: journal_files(project.results / "sweeps/s"), what="the journal", while_running=started)
    wait_until(lambda: STARTING[when](project, temporary, driver), what=when, while_running=started)
    family = driver.children(recursive=True)
    signal_group(started, number)
    output, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 130, output
    assert "Traceback" not in output
    assert [each.outcome for each in tries(project, "s")] in ([], ["interrupted"])
    wait_until(lambda: not alive(family), what="all processes to end")
    wait_until(lambda: list(temporary.iterdir()) == [], what="all files to be removed")
