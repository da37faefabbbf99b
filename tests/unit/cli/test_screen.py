"""The screen of `trainyard run`: its own lines, and the progress of jobs in a queue."""

import io
import logging

import pytest
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent
from trainyard.cli.screen import ERASED, LINE_SECONDS, REDRAW_SECONDS, Screen
from trainyard.utils.import_path import SCRIPTS


@pytest.fixture
def shown():
    """What Snakemake's handler for the terminal prints, and that for the log file."""
    printed, filed = io.StringIO(), io.StringIO()
    handlers = [logging.StreamHandler(printed), logging.StreamHandler(filed)]
    handlers[0].name, handlers[1].name = "DefaultStreamHandler", "DefaultLogFileHandler"
    before = (logger.handlers, logger.filters, logger.level)
    logger.handlers, logger.filters = handlers, []
    logger.setLevel(logging.INFO)
    yield printed, filed
    logger.handlers, logger.filters = before[:2]
    logger.setLevel(before[2])


def test_what_snakemake_says_is_in_its_log_file_only(shown):
    printed, filed = shown
    Screen().take_over()
    logger.info("SNAKEMAKE")
    logger.error("Error in rule sweep, jobid: 1", extra={"event": LogEvent.JOB_ERROR})
    logger.error("RuleException:\nCalledProcessError in file sweep.smk, line 45", extra={"exception": "RuleException"})
    logger.error("WorkflowError:\nAt least one job did not complete successfully.")
    logger.warning("No SLURM account given, trying to guess.")
    assert printed.getvalue() == ""
    assert len(filed.getvalue().splitlines()) == 7


def test_what_trainyard_says_and_what_the_summary_does_not_know_is_shown(shown):
    printed, _ = shown
    Screen().take_over()
    own = logging.LogRecord(
        "snakemake", logging.INFO, str(SCRIPTS / "trainyard/cli/slurm_executor.py"), 1, "own", (), None
    )
    logger.handle(own)
    logger.error("MissingOutputException: some output files are missing")
    assert printed.getvalue() == "own\nMissingOutputException: some output files are missing\n"


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now

    def strftime(self, pattern):
        return "01:02:03"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("trainyard.cli.screen.time", clock)
    return clock


def test_without_a_terminal_a_line_comes_each_minute_and_when_jobs_change(clock, capsys):
    screen = Screen()
    for seconds, jobs in ((0, "1 job pending"), (REDRAW_SECONDS, "1 job pending"), (0, "1 job running"),
                          (1, "1 job running"), (LINE_SECONDS, "1 job running")):  # fmt: skip
        clock.now += seconds
        screen.show_progress(lambda: [f"at {clock.now:g}"], jobs)
    screen.erase_progress()
    assert capsys.readouterr().out.splitlines() == [
        "01:02:03 at 1000; 1 job pending",
        "01:02:03 at 1005; 1 job running",
        "01:02:03 at 1066; 1 job running",
    ]


def test_on_a_terminal_the_line_is_redrawn_and_makes_room_for_others(clock, monkeypatch, shown):
    printed, _ = shown
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    screen.take_over()
    screen.show_progress(lambda: ["a line of forty characters or so, or more"], "")
    clock.now += REDRAW_SECONDS
    screen.show_progress(lambda: ["sweep s"], "1 job running")
    logger.info("Building DAG of jobs...")
    logger.error("an error")
    screen.erase_progress()
    assert terminal.getvalue() == f"{ERASED}a line of forty characters or\r{ERASED}sweep s; 1 job running\r{ERASED}"
    assert printed.getvalue() == "an error\n"


def test_a_run_that_is_asked_to_end_says_once_that_it_waits_for_its_jobs():
    """SIGTERM, as by `timeout`: Snakemake submits no other job, and says so in its log file alone, at each signal."""
    text = "Will exit after finishing currently running jobs (scheduler)."
    screen = Screen()
    first, second = (
        logging.LogRecord("snakemake", logging.INFO, "/snakemake/job_scheduler.py", 1, text, None, None) for _ in "12"
    )
    assert screen._shows(first)
    assert first.getMessage().startswith("asked to end: waiting for the jobs that run")
    assert not screen._shows(second)
