"""At SIGTERM, trainings and trials save their state within a step, and the next run goes on from there."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.planning.attempts import fold_attempts
from trainyard.planning.journal import read_journal
from yard import TINY, Yard, alive, child_named

# A model that writes a line per step and rank. From step `waits_at` on, each step waits for a file `go`, or until this
# process has been told to stop.
STEPS = """
import os, signal, time
from pathlib import Path
import torch
from trainyard.training.networks.models import SmallConvNet

HERE = Path(__file__).parent

def is_told():
    return getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "is_given", False)

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
NOISE = {"seconds", "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction"}


@pytest.fixture
def gated(yard: Yard) -> Yard:
    (yard.folder / "gated.py").write_text(STEPS)
    return yard


@pytest.fixture
def temporary(yard: Yard) -> Iterator[Path]:
    """The folder for temporary files of the yard; its path is short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yard.environment["TMPDIR"] = str(folder)
    yield folder
    shutil.rmtree(folder)


def scale_config(scale: str, *, waits_at: int, batch: int) -> dict:
    train = {**TRAIN, "batch_size": batch, "model_args": {"waits_at": waits_at}}
    return {**TINY, "scaling": {"s": {"dataset": "tiny", "train": train, "scales": [scale]}}}


def steps_of(yard: Yard) -> int:
    path = yard.folder / "steps-0"  # of the only rank, or the first one
    return len(path.read_text().splitlines()) if path.exists() else 0


def history(yard: Yard, scale: str) -> list[dict]:
    table = pd.read_csv(yard.results / f"scaling/s/{scale}/history.csv")
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


@pytest.mark.parametrize("ending", ["preemption", "closed terminal"])
def test_a_training_stops_within_a_step_and_resumes_bit_identically(gated, ending):
    """The signal arrives in the middle of the second epoch."""
    scale = "1x2"
    gated.write(scale_config(scale, waits_at=12, batch=4))
    gated.stage()
    command = gated.script("train", "--study", "s", "--scale", scale)
    first = gated.start(*command)
    wait_until(lambda: steps_of(gated) == 12, what="twelve steps", while_running=first)
    send, number = ENDINGS[ending]
    send(first, number)
    output, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 1, output
    assert "stopped by a signal, in epoch 2 of 3, after step 4 of 8" in output
    assert "the same command continues from here" in output
    assert "Traceback" not in output
    (gated.folder / "go").touch()
    done = gated.run(*command)
    assert "continuing after epoch 1 and step 4, from" in done.stdout
    assert steps_of(gated) == 24, "no step is repeated"
    disturbed = history(gated, scale)
    for path in gated.folder.glob("steps-*"):
        path.unlink()
    gated.results.joinpath("scaling").rename(gated.folder / "before")
    gated.run(*command)
    assert history(gated, scale) == disturbed


@pytest.mark.parametrize("kind", ["training", "script"])
def test_a_closed_terminal_does_not_end_a_training_under_nohup(gated, kind):
    """torchrun handles SIGHUP, whatever it inherits, if it is not told otherwise."""
    gated.write(scale_config("1x2", waits_at=12, batch=4))
    if kind == "script":
        lines = ["import os, time", "from pathlib import Path", "Path(os.environ['RANK'] + '-is-up').touch()"]
        lines += ["while not Path('go').exists(): time.sleep(0.02)", "print('loss 1')"]
        (gated.folder / "script.py").write_text("\n".join(lines))
        study = {"script": "script.py", "scales": ["1x2"], "metrics": {"pattern": "loss (?P<loss>{number})"}}
        gated.write({"scaling": {"s": study}})
    else:
        gated.stage()
    is_up = {
        "training": lambda: steps_of(gated) == 12,
        "script": lambda: len([*gated.folder.glob("*-is-up")]) == 2,
    }
    started = gated.start("nohup", *gated.script("train", "--study", "s", "--scale", "1x2"))
    wait_until(is_up[kind], what="two ranks", while_running=started)
    signal_group(started, signal.SIGHUP)
    (gated.folder / "go").touch()
    output, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 0, output


# A function that writes its epochs to its checkpoint folder, and a command that does the same at SIGTERM.
PROGRAMS = """
import signal, sys, time
from pathlib import Path

def run(config, context):
    kept = context.checkpoint_dir / "epoch"
    first = int(kept.read_text()) if kept.exists() else 0
    for epoch in range(first + 1, 6):
        with open("function-epochs", "a") as file:
            file.write(f"{epoch}\\n")
        while epoch == 3 and not first and not context.time_is_up:
            time.sleep(0.02)
        context.report(epoch=epoch, loss=1 / epoch)
        kept.write_text(str(epoch))
        if context.time_is_up:
            context.interrupt()

def command(lr, folder, resume_from):
    first = int(Path(resume_from).read_text()) if resume_from else 0
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    for epoch in range(first + 1, 6):
        with open("command-epochs", "a") as file:
            file.write(f"{epoch}\\n")
        while epoch == 3 and not first and not told:
            time.sleep(0.02)
        print(f"epoch {epoch} loss {1 / epoch}", flush=True)
        (Path(folder) / "kept.pt").write_text(str(epoch))
        if told:
            sys.exit(1)

if __name__ == "__main__":
    command(*sys.argv[1:])
"""
SWEEPS = {
    "function": {"function": "programs:run", "trials": [{"lr": 0.1}]},
    "command": {
        "command": "python programs.py {lr} {trial_dir} {resume_from}",
        "trials": [{"lr": 0.1}],
        "checkpoint": "*.pt",
        "metrics": {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>\S+)"},
    },
    "training": {"dataset": "tiny", "train": {**TRAIN, "model_args": {"waits_at": 12}}, "trials": [{"lr": 0.1}]},
}


def journal_file(yard: Yard, name: str) -> Path:
    return yard.results / f"sweeps/{name}/journal.jsonl"


def tries(yard: Yard, name: str):
    return fold_attempts(read_journal(journal_file(yard, name)))


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        *(("command", ending) for ending in ENDINGS),
        ("training", "preemption"),
        ("training", "timeout"),
        ("function", "preemption"),
        ("function", "Ctrl-C"),
    ],
)
def test_a_trial_saves_its_state_when_it_is_told_to_end_and_resumes_from_it(gated, temporary, kind, ending):
    """In the middle of its third epoch, a training in that of its second."""
    (gated.folder / "programs.py").write_text(PROGRAMS)
    gated.write({**TINY, "sweeps": {kind: SWEEPS[kind]}})
    if kind == "training":
        gated.stage()
    command = gated.script("sweep", "--sweep", kind)
    epochs = gated.folder / f"{kind}-epochs"
    in_epoch = {
        "training": lambda: steps_of(gated) == 12,
        "function": lambda: epochs.exists() and epochs.read_text().endswith("3\n"),
        "command": lambda: epochs.exists() and epochs.read_text().endswith("3\n"),
    }
    first = gated.start(*command)
    wait_until(in_epoch[kind], what="the trial to be in an epoch", while_running=first)
    family = psutil.Process(first.pid).children(recursive=True)
    send, number = ENDINGS[ending]
    send(first, number)
    output, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 130, output
    assert "Traceback" not in output
    assert [each.outcome for each in tries(gated, kind)] == ["interrupted"]
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not alive(family), what="all processes to end")
    (gated.folder / "go").touch()
    gated.run(*command)
    assert [each.outcome for each in tries(gated, kind)] == ["interrupted", "finished"]
    if kind == "training":
        assert steps_of(gated) == 24, "no step is repeated"
        rows = tries(gated, kind)[-1].epochs
        assert [row["epoch"] for row in rows] == [1, 2, 3]
    else:
        assert epochs.read_text().split() == list("12345"), "no epoch is repeated"
        assert tries(gated, kind)[-1].metrics["loss"] == 1 / 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_snakemake_and_its_sweep_end_and_continue_together(gated, number):
    """`timeout` and Ctrl-C send the signal to both."""
    (gated.folder / "programs.py").write_text(PROGRAMS)
    gated.write({"sweeps": {"command": SWEEPS["command"]}})
    command, epochs = gated.snakemake_command("--", "sweeps"), gated.folder / "command-epochs"
    first = gated.start(*command)
    wait_until(lambda: epochs.exists() and epochs.read_text().endswith("3\n"), what="an epoch", while_running=first)
    family = psutil.Process(first.pid).children(recursive=True)
    signal_group(first, number)
    output, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 1, output
    wait_until(lambda: not alive(family), what="all processes to end")
    assert [each.outcome for each in tries(gated, "command")] == ["interrupted"], output
    gated.run(*command)
    assert [each.outcome for each in tries(gated, "command")] == ["interrupted", "finished"]
    assert epochs.read_text().split() == list("12345"), "no epoch is repeated"


STARTING: dict[str, Callable[[Yard, Path, psutil.Process], bool]] = {
    "before Ray": lambda yard, temporary, driver: any(temporary.glob("ty-ray-*")),
    "with Ray's head": lambda yard, temporary, driver: child_named("gcs_server", driver) is not None,
    "with Ray's raylet": lambda yard, temporary, driver: child_named("raylet", driver) is not None,
    "after Ray": lambda yard, temporary, driver: "ray_up" in journal_file(yard, "s").read_text(),
}


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
def test_a_sweep_that_is_told_to_end_while_it_starts_leaves_nothing(yard, temporary, when, number):
    (yard.folder / "programs.py").write_text(PROGRAMS)
    yard.write({"sweeps": {"s": SWEEPS["function"]}})
    started = yard.start(*yard.script("sweep", "--sweep", "s"))
    driver = psutil.Process(started.pid)
    wait_until(journal_file(yard, "s").exists, what="the journal", while_running=started)
    wait_until(lambda: STARTING[when](yard, temporary, driver), what=when, while_running=started)
    family = driver.children(recursive=True)
    signal_group(started, number)
    output, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 130, output
    assert "Traceback" not in output
    assert [each.outcome for each in tries(yard, "s")] in ([], ["interrupted"])
    wait_until(lambda: not alive(family), what="all processes to end")
    wait_until(lambda: list(temporary.iterdir()) == [], what="all files to be removed")


def test_a_command_that_is_ended_after_its_last_epoch_has_a_result(gated):
    """Its second attempt has nothing left to do, and reports nothing."""
    (gated.folder / "late.py").write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "if not sys.argv[3]:\n"
        "    print('epoch 1 loss 0.5', flush=True)\n"
        "    Path(sys.argv[2], 'kept.pt').write_text('state')\n"
        "    Path('saved').touch()\n"
        "    time.sleep(3600)\n"
    )
    sweep = {**SWEEPS["command"], "command": "python late.py {lr} {trial_dir} {resume_from}", "grace_seconds": 1}
    gated.write({"sweeps": {"s": sweep}})
    command = gated.script("sweep", "--sweep", "s")
    first = gated.start(*command)
    wait_until(lambda: (gated.folder / "saved").exists(), what="the last checkpoint", while_running=first)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_SECONDS)
    gated.run(*command)
    assert [each.outcome for each in tries(gated, "s")] == ["interrupted", "finished"]
    assert tries(gated, "s")[-1].metrics == {"loss": 0.5}
