"""The live view of a sweep on terminals of any size: whole lines, and log records above the table."""

import io
import logging
import os
import pty
import re
from contextlib import suppress

import pytest
from rich.cells import cell_len
from rich.console import Console
from trainyard.config.load import check_config
from trainyard.packing import live_table
from trainyard.packing.live_table import LiveTable, shown_table
from trainyard.packing.live_view import LiveView
from trainyard.planning.attempts import update_attempts
from trainyard.planning.journal import Ended, Epoch, Started
from trainyard.planning.plan import plan_sweep

LONG = "a_long_value" * 20


ATTEMPTS = {}


def show(view, event):
    view.on_event(event, update_attempts(ATTEMPTS, event), is_own=True)


def view_of(results, slots):
    """The view of a sweep whose trials all run, and their names."""
    sweep = {"function": "os:getcwd", "grid": {"name": [f"{LONG}{number}" for number in range(40)]}, "slots": slots}
    plan = plan_sweep(check_config({"sweeps": {"s" * 60: sweep}}), "s" * 60, results)
    view = LiveView(plan)
    for slot, trial in enumerate(plan.state.trials):
        show(view, Started(trial=trial, attempt=1, time=1.0, slot=slot, node=f"node-{slot}", gpu="0", device="A100"))
    return view, list(plan.state.trials)


def drawn(view, **size):
    """The text of the view on a terminal of this size, by default of 200 columns."""
    console = Console(file=io.StringIO(), **{"width": 200, "no_color": True, **size})
    console.print(LiveTable(view, console).render())
    return console.file.getvalue()


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 50 columns and 12 lines."""
    console = Console(file=io.StringIO(), width=50, height=12, force_terminal=True, _environ={"TERM": "xterm"})
    monkeypatch.setattr(live_table, "Console", lambda: console)
    return console


@pytest.mark.parametrize(("width", "height"), [(200, 60), (80, 24), (40, 10), (20, 5)])
def test_lines_are_as_wide_and_the_view_as_tall_as_the_terminal(tmp_path, width, height):
    view, _ = view_of(tmp_path, {"gpus_per_node": 40})
    lines = drawn(view, width=width, height=height).splitlines()
    assert len(lines) < height, "the last line is the cursor's"
    assert all(cell_len(line) <= width for line in lines)
    assert re.search(r"and \d+ more$", lines[-1]) if height < 60 else LONG[:60] in lines[-1]


@pytest.mark.parametrize("width", [200, 60, 40])
def test_the_bar_has_a_line_of_its_own(tmp_path, width):
    view, trials = view_of(tmp_path, {"gpus_per_node": 40})
    show(view, Ended(status="finished", trial=trials[0], attempt=1, time=2.0, seconds=1.0))
    _, bar, header, *_ = drawn(view, width=width, height=24).splitlines()
    assert set(bar.strip()) <= set("━╸╺")
    assert header.startswith("slot")


def test_a_sweep_without_gpus_has_no_column_for_them(tmp_path):
    for slots, has_gpus in (({"cpus": 40}, False), ({"gpus_per_node": 40}, True)):
        view, _ = view_of(tmp_path, slots)
        assert ("GPU" in drawn(view)) == has_gpus


def test_all_log_records_are_whole_lines_above_the_table(tmp_path, terminal, monkeypatch, caplog):
    """Also those of other modules, whose handler writes to the terminal itself."""
    screen, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(screen)])
    caplog.set_level(logging.INFO)
    view, trials = view_of(tmp_path, {"gpus_per_node": 40})
    with shown_table(view):
        logging.getLogger("other").warning("slot 3 is retired: %s", "its GPU is broken, " * 10)
        show(view, Ended(trial=trials[0], attempt=1, status="finished", seconds=2.0, time=3.0))
    logging.getLogger("other").info("afterwards")
    shown = terminal.file.getvalue()
    assert "slot 3 is retired: " + "its GPU is broken, " * 10 in shown
    assert f"[1/40] {trials[0]} name={LONG}0: 2.0 s" in shown
    assert screen.getvalue() == "afterwards\n", "nothing is written into the table"


def test_a_terminal_that_is_closed_ends_nothing(tmp_path, monkeypatch):
    """At SIGHUP, a sweep first logs that trials may save their state."""
    terminal, file = pty.openpty()
    screen = os.fdopen(file, "w")
    monkeypatch.setattr(live_table, "Console", lambda: Console(file=screen, _environ={"TERM": "xterm"}))
    view, _ = view_of(tmp_path, {"gpus_per_node": 1})
    with shown_table(view):
        os.close(terminal)
        logging.getLogger("other").warning("%s may take up to 30 s to save a checkpoint", "1 running trial")
    with suppress(OSError):  # of what it still has to write
        screen.close()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_characters_that_a_terminal_cannot_show_end_nothing(tmp_path, monkeypatch, encoding):
    """The error of a program has a frame of box-drawing characters, or the bytes of a name that is not UTF-8."""
    shown = io.BytesIO()
    screen = io.TextIOWrapper(shown, encoding=encoding)
    console = Console(file=screen, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    monkeypatch.setattr(live_table, "Console", lambda: console)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's would keep what xdist cannot send
    view, _ = view_of(tmp_path, {"gpus_per_node": 1})
    with shown_table(view):
        logging.getLogger("other").warning("exit code 1: \u256d\u2500 caf\udce9")
    assert b"caf\\udce9" in shown.getvalue()


def test_a_retry_in_a_search_leaves_as_many_trials_to_draw(tmp_path):
    search = {"trials": 5, "values": {"x": {"low": 0, "high": 1}}}
    sweep = {"function": "os:getcwd", "search": search, "metric": "score", "mode": "max"}
    config = check_config({"sweeps": {"s": sweep}})
    view = LiveView(plan_sweep(config, "s", tmp_path))
    for attempt in (1, 2, 3):
        show(view, Started(trial="drawn", attempt=attempt, time=1.0))
        show(view, Ended(trial="drawn", attempt=attempt, status="failed", error="", time=2.0, retried=attempt < 3))
    show(view, Started(trial="another", attempt=1, time=2.0))
    show(view, Ended(trial="another", attempt=1, status="finished", metrics={}, seconds=60.0, time=62.0))
    assert "2 of 5 trials done" in drawn(view)
    assert "about 3 min 0 s left" in drawn(view), "three more trials"


def test_an_interrupted_trial_is_not_done(tmp_path):
    view, trials = view_of(tmp_path, {"gpus_per_node": 40})
    for trial, status in zip(trials, ("finished", "interrupted", "diverged"), strict=False):
        show(view, Ended(trial=trial, attempt=1, status=status, metrics={}, error="", seconds=1.0))
    assert ": 2 of 40 trials done" in drawn(view)


def test_a_trial_without_metrics_is_a_line_without_its_error(tmp_path, caplog):
    """A warning has that of the first one, and so has the last line of the sweep."""
    caplog.set_level(logging.INFO)
    view, (running, *_) = view_of(tmp_path, {"gpus_per_node": 1})
    error = "it succeeded, but reported no metrics"
    show(view, Ended(trial=running, attempt=1, status="unreadable", seconds=2.0, time=3.0, error=error, log="a.log"))
    assert caplog.messages[-1].endswith(": 2.0 s, without metrics; see a.log")


def test_the_picture_is_drawn_anew_when_the_terminal_is_resized(tmp_path, terminal):
    view, _ = view_of(tmp_path, {"gpus_per_node": 40})
    table = LiveTable(view, terminal)
    table.render()
    cleared = terminal.file.getvalue().count("\x1b[2J")
    terminal.width = 30
    table.render()
    table.render()
    assert terminal.file.getvalue().count("\x1b[2J") == cleared + 1


def test_the_value_of_a_trial_is_shown_with_its_epoch(tmp_path, caplog):
    """One that is reported only once is no epoch's. The table has the number of the last epoch, not of the rows."""
    sweep = {"function": "os:getcwd", "grid": {"x": [1, 2]}, "metric": "loss", "slots": {"gpus_per_node": 2}}
    view = LiveView(plan_sweep(check_config({"sweeps": {"s": sweep}}), "s", tmp_path))
    first, second = view.state.trials
    caplog.set_level(logging.INFO)
    for slot, trial in enumerate((first, second)):
        show(view, Started(trial=trial, attempt=1, time=1.0, slot=slot, node="n1", gpu="0", device="A100"))
    for epoch, loss in ((0.5, 0.4), (1, 0.3), (1.5, 0.2)):
        show(view, Epoch(trial=first, attempt=1, time=2.0, metrics={"epoch": epoch, "loss": loss}))
    show(view, Epoch(trial=second, attempt=1, time=2.0, metrics={"epoch": 1, "loss": 0.1}))
    assert re.search(r"x=1 +1\.5 +loss 0\.2 ", drawn(view))
    for trial, loss in ((first, 0.2), (second, 0.1)):
        end = {"status": "finished", "time": 3.0, "seconds": 2.0, "metrics": {"loss": loss}}
        show(view, Ended(trial=trial, attempt=1, **end))
    assert "loss 0.2 at epoch 1.5" in caplog.messages[0]
    assert re.search(r"loss 0\.1(?! at)", caplog.messages[1])
