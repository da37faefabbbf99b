"""How programs end: exit codes, whatever handlers and threads there are, and one message without results."""

import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import sweep
import train
from project import ONE_RANK, ROOT, TINY
from slurm_cluster.waiting import PATIENCE_SECONDS, finished
from trainyard.cli import command_line
from trainyard.cli.command_line import results_expected
from trainyard.config.load import check_config
from trainyard.report.study_plots import draw_plots
from trainyard.report.study_tables import write_tables
from trainyard.utils.errors import UserError
from trainyard.utils.typed_commands import run_call

WAITING = """
import argparse, time
from trainyard.cli import command_line

def main(arguments):
    print("it runs", flush=True)
    time.sleep(3600)

command_line.run_program(main, argparse.Namespace(log_file=None))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}


def test_a_background_program_handles_sigint_and_under_nohup_ignores_sighup():
    """A shell starts it with SIGINT ignored, nohup with SIGHUP ignored; it must handle SIGINT."""
    ignoring = ["env", "--ignore-signal=INT", "--ignore-signal=HUP"]
    command = [*ignoring, sys.executable, "-c", WAITING]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "it runs\n"
        program.send_signal(signal.SIGHUP)
        program.send_signal(signal.SIGINT)
        try:
            said, _ = program.communicate(timeout=PATIENCE_SECONDS)
        finally:
            program.kill()
    assert program.returncode == 130
    assert said == "interrupted: finished work is kept; the same command continues from there\n"


# A program that ends as its first argument says.
ENDING = """
import argparse
from trainyard.cli import command_line
from trainyard.utils.errors import ContinuedError, FinalError, UserError

ERRORS = {"wrong": UserError, "final": FinalError, "continued": ContinuedError, "bug": ValueError,
          "stop": KeyboardInterrupt}

def main(arguments):
    if arguments.error:
        raise ERRORS[arguments.error]("it failed")
    return arguments.code

parser = command_line.build_parser("", example="")
parser.add_argument("--error")
parser.add_argument("--code", type=int)
command_line.run_program(main, parser.parse_args())
"""


@pytest.mark.parametrize(
    ("options", "code"),
    [("", 0), ("--code 1", 1), ("--error wrong", 1), ("--error final", 1), ("--error continued", 1),
     ("--error bug", 1), ("--error stop", 130), ("--colour red", 2)],
)  # fmt: skip
def test_a_program_ends_with_the_documented_exit_code(tmp_path, options, code):
    """An error that would occur again, and one whose work continues, are also marked beside the log."""
    log = tmp_path / "s.log"
    command = [sys.executable, "-c", ENDING, "--config", "x.yaml", "--log-file", str(log), *options.split()]
    done = finished(command, check=False, env=ENVIRONMENT)
    assert command_line.final_mark(log).exists() == ("final" in options)
    assert command_line.continued_mark(log).exists() == ("continued" in options)
    assert done.returncode == code
    assert ("Traceback" in done.stdout + done.stderr) == ("bug" in options)
    row = next(
        line for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines() if line.startswith(f"| {code} |")
    )
    assert row


@pytest.mark.parametrize(("kind", "name"), [("data", "digits"), ("sweeps", "s"), ("scaling", "width")])
def test_tables_and_plots_of_missing_results_name_the_command_that_makes_them(tmp_path, kind, name):
    config = check_config(
        {
            "datasets": {"digits": {"source": "digits"}},
            "sweeps": {"s": {"dataset": "digits", "grid": {"lr": [0.1]}}},
            "scaling": {"width": {"dataset": "digits", "scales": ["1x1"], "mode": "weak"}},
        }
    )
    given = Namespace(config=Path("my study.yaml"), results=tmp_path / "results", kind=kind, name=name)
    command = f"`{run_call(given.config, '--', kind)}`"
    for make in (draw_plots, write_tables):
        if (make, kind) != (write_tables, "data"):  # datasets have no tables
            with pytest.raises(UserError, match=re.escape(command)), results_expected(given):
                make(config, kind, name, given.results)


def test_a_file_of_the_user_that_is_missing_is_no_missing_result(tmp_path):
    given = Namespace(config=Path("c.yaml"), results=tmp_path / "results", kind="data", name="digits")
    with pytest.raises(FileNotFoundError), results_expected(given):
        (tmp_path / "mine.csv").read_text()


def test_a_job_does_not_wait_until_the_accounting_knows_it(tmp_path, slurm):
    """Which takes slurmctld up to five seconds."""
    job = slurm.allocate("n1")
    slurm.runs("sacct", f"while ! grep -q begun {tmp_path}/log; do sleep 0.05; done; echo sbatch job.sh")
    program = WAITING.replace("time.sleep(3600)", 'print("begun", flush=True)')
    with open(tmp_path / "log", "w") as log:
        subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT | os.environ, stdout=log, check=True)
    said = (tmp_path / "log").read_text()
    assert said.startswith(f"Slurm job {job} on n1; ")
    assert said.endswith("begun\nsubmitted with: sbatch job.sh\n")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("t", {}, "`sweeps` has no 't'; known: lr"),
        ("lr", {}, "data/tiny/meta.json does not exist: run Snakemake's target `data`"),
    ],
)
def test_a_sweep_that_cannot_start_says_why(project, name, options, message):
    if options:
        project.stage()
    project.write({**TINY, "sweeps": {"lr": TINY["sweeps"]["lr"] | options}})
    given = Namespace(config=project.config_file, results=project.results, sweep=name, order_job=None, tables=False)
    with pytest.raises(UserError, match=re.escape(message)):
        sweep.main(given)


@pytest.mark.usefixtures("as_process")
def test_the_wrong_number_of_ranks_is_explained(project, monkeypatch):
    for name, value in ONE_RANK.items():
        monkeypatch.setenv(name, value)
    study = {"dataset": "tiny", "train": {"model": "cnn", "batch_size": 32}, "scales": ["1x2"]}
    project.write({**TINY, "scaling": {"s": study}})
    given = Namespace(config=project.config_file, results=project.results, study="s", scale="1x2")
    message = "scale 1x2 needs 2 ranks, but has 1: start it with .*torchrun --nnodes 1 --nproc-per-node 2"
    with pytest.raises(UserError, match=message):
        train.main(given)
