"""Progress is a bar on a terminal; elsewhere it is a log line now and then, with rate and remaining time."""

import io
import logging

import pytest
from rich.console import Console
from trainyard.utils import progress_bar


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_is_logged_every_ten_seconds(caplog, now, capsys):
    with (
        caplog.at_level(logging.INFO),
        progress_bar.show_progress("photos", 10_000, unit="images", completed=4_000) as advance,
    ):
        for _ in range(30):
            now[0] += 1
            advance(100)
    assert [record.message for record in caplog.records] == [
        "photos: 5,100 of 10,000 images, 100 images/s, about 49 s left",
        "photos: 6,200 of 10,000 images, 100 images/s, about 38 s left",
    ]
    assert capsys.readouterr().out == "", "no bar"


def test_on_a_terminal_there_is_a_bar_and_no_line(caplog, now, monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(progress_bar, "Console", lambda: terminal)
    caplog.set_level(logging.INFO)
    with progress_bar.show_progress("photos", 10_000, unit="images") as advance:
        for _ in range(30):
            now[0] += 1
            advance(100)
    assert "photos" in screen.getvalue()
    assert "100 images/s, about 1 min 10 s left" in screen.getvalue()
    assert not caplog.records
