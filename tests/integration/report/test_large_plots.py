"""Plots of sweeps with 10,000 trials are small files of few artists, in which everything can be seen."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from plotted import JOBS, plotted
from trainyard.report import cost_plots, metric_plots, parallel_plot, style, timeline_plots

COUNT = 10_000
BARS = pd.DataFrame(
    {
        "trial": [f"t{number}" for number in range(COUNT)],
        "node": "n1",
        "gpu": 0,
        "slot": [number % 8 for number in range(COUNT)],
        "start": [number // 8 for number in range(COUNT)],
        "end": [number // 8 + 0.9 for number in range(COUNT)],
        "outcome": [*(["finished", "stopped"] * (COUNT // 2))[:-1], "failed"],
        "expected_seconds": 1.0,
        "kept_seconds": 0.9,
        "gpus_per_trial": 1.0,
        "session": "second",
    }
)
TRIALS = pd.DataFrame(
    {
        "trial": BARS["trial"],
        "seed": range(COUNT),
        "file": [f"f{number}.csv" for number in range(COUNT)],
        "status": ["finished", "stopped"] * (COUNT // 2),
        "seconds": 0.9,
        "val_accuracy": [number / COUNT for number in range(COUNT)],
    }
)
JOB = JOBS.tail(1).assign(start=-1.0, slots=8, gpus=8, elapsed_seconds=1252.0)


@functools.cache
def ranked(*keys):
    return plotted(TRIALS, keys, "val_accuracy")


def gantt(axes, *keys):
    timeline_plots.plot_gantt(axes, BARS, JOB, ranked(*keys))


def losses(axes, *keys):
    epochs = pd.concat([TRIALS.assign(epoch=epoch, val_loss=1 / epoch) for epoch in (1, 2, 3)])
    metric_plots.plot_epochs(axes, epochs, ranked(*keys), "val_loss")


PLOTS = {
    "gantt": lambda axes: gantt(axes, "seed"),
    "gantt of several keys": lambda axes: gantt(axes, "seed", "file"),
    "metric": lambda axes: metric_plots.plot_metric(axes, ranked=ranked("seed")),
    "metric by name": lambda axes: metric_plots.plot_metric(axes, ranked=ranked("file")),
    "losses": lambda axes: losses(axes, "seed"),
    "losses of several keys": lambda axes: losses(axes, "seed", "file"),
    "parallel coordinates": lambda axes: parallel_plot.plot_parallel(axes, ranked("seed", "file")),
    "predictions": lambda axes: cost_plots.plot_predictions(axes, BARS, JOBS),
}


class Drawn(NamedTuple):
    path: Path  # without its suffix
    artists: int


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A function that draws a plot, once."""
    folder, artists = tmp_path_factory.mktemp("plots"), []

    @functools.cache
    def draw(name):
        style.save(lambda axes: (PLOTS[name](axes), artists.append(len(axes.get_children()))), folder / name)
        return Drawn(folder / name, artists[-1])

    return draw


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_of_10000_trials_has_few_artists_and_less_than_a_megabyte(drawn, name):
    assert drawn(name).artists < 400
    assert max(drawn(name).path.with_suffix(suffix).stat().st_size for suffix in (".svg", ".png")) < 1e6


def test_narrow_bars_are_not_hidden_by_their_edges(drawn):
    pixels = np.asarray(Image.open(drawn("gantt").path.with_suffix(".png")).convert("RGB"))
    assert (pixels[:, pixels.shape[1] // 2] < 250).any(axis=1).mean() > 0.5, "most of a line across the slots"
