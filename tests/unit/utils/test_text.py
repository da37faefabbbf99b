"""Durations and times have units that people read, and a misspelled name gets a suggestion."""

import time

import pytest
from trainyard.utils.text import describe_exit, format_duration, format_time, suggest


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_a_duration_has_units(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-35, "killed by signal 35"),
        (137, "exit code 137 (SIGKILL)"),
        (128, "exit code 128"),
        (255, "exit code 255"),
    ],
)
def test_the_signal_that_ended_a_process_has_its_name(code, text):
    assert describe_exit(code) == text


def test_a_time_is_in_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert format_time(1795285808.4) == "2026-11-21 18:30:08 UTC"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("resnet", ["resnet18", "cnn"], "did you mean 'resnet18'?"),
        ("x", ["a", "b"], "known: a, b"),
        ("x", [], "none is defined"),
    ],
)
def test_the_closest_known_word_is_suggested(word, known, text):
    assert suggest(word, known) == text


def test_a_word_is_suggested_for_its_abbreviation():
    assert suggest("learning_rate", ["epochs", "lr"]) == "did you mean 'lr'?"
    assert suggest("wd", ["weight_decay", "epochs"]) == "did you mean 'weight_decay'?"
    assert suggest("x", ["y_z", "z"]) == "known: y_z, z"
