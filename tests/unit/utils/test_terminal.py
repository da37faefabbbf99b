"""Progress and tables on a terminal, and where there is none."""

import io
import logging

import pytest
from rich.cells import cell_len
from rich.console import Console
from trainyard.utils import terminal
from trainyard.utils.terminal import Column, TerminalTable


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_is_logged_every_ten_seconds(caplog, now, capsys):
    with (
        caplog.at_level(logging.INFO),
        terminal.show_progress("photos", 10_000, unit="images", completed=4_000) as advance,
    ):
        for _ in range(30):
            now[0] += 1
            advance(100)
    assert [record.message for record in caplog.records] == [
        "photos: 5,100 of 10,000 images, 100 images/s, about 49 s left",
        "photos: 6,200 of 10,000 images, 100 images/s, about 38 s left",
    ]
    assert capsys.readouterr().out == "", "no bar"


def test_on_a_terminal_there_is_a_bar_and_no_line(caplog, now, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "100")
    caplog.set_level(logging.INFO)
    with terminal.show_progress("photos", 10_000, unit="images") as advance:
        for _ in range(30):
            now[0] += 1
            advance(100)
    screen = capsys.readouterr().out
    assert "photos" in screen
    assert "100 images/s, about 1 min 10 s left" in screen
    assert not caplog.records


COLUMNS = (Column("slot"), Column("node", rank=2, is_cut=True), Column("values", is_cut=True), Column("left", rank=1))
ROWS = [["0", "gpu-node-0001", "blocks=4, learning_rate=0.001", "3 min 20 s"], ["11", "n2", "名前=値\n\x1b[2J", "4 s"]]


def printed(width, **options):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True, highlight=False)
    console.print(TerminalTable(COLUMNS, ROWS, **options))
    return console.file.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.parametrize("width", [*range(1, 80, 3), 200])
def test_every_row_is_one_line_no_wider_than_the_terminal(width):
    lines = printed(width)
    assert len(lines) == 1 + len(ROWS)
    assert all(cell_len(line) <= width for line in lines)


def test_columns_are_cut_and_then_left_out_by_rank():
    assert printed(200)[0].split() == ["slot", "node", "values", "left"]
    assert printed(200)[1] == "0     gpu-node-0001  blocks=4, learning_rate=0.001  3 min 20 s"
    assert printed(50)[1] == "0     gpu-node-0001  blocks=4, learni…  3 min 20 s"
    assert printed(40)[0].split() == ["slot", "values", "left"]
    assert printed(20)[0].split() == ["slot", "values"]
    assert printed(20)[1] == "0     blocks=4, lea…"


def test_what_a_value_contains_moves_no_cursor():
    assert printed(200)[2].split() == ["11", "n2", r"名前=値\n\x1b[2J", "4", "s"]


def test_rows_that_have_no_room_are_counted():
    assert printed(80, max_rows=1)[1:] == ["and 2 more"]
    assert len(printed(80, max_rows=2)) == 3


def test_output_to_a_file_is_never_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    terminal.open_console().print(TerminalTable(COLUMNS, [["0", "n" * 300, "v" * 300, "1 s"]]))
    assert f"0     {'n' * 300}  {'v' * 300}  1 s" in capsys.readouterr().out
