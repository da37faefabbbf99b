"""The picture of README.md: how long each participant takes for each work."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from trainyard.report import style

from peers.participants import Peer
from peers.tables import OWN, RUNS, runs_of
from peers.works import Work

COLUMNS = 3


def draw(works: Mapping[str, Work], runs: RUNS, peers: Mapping[str, Peer], path: Path) -> bool:
    """Write `path`.svg and `path`.png: a panel per work, a row per participant; False if there is nothing to draw."""
    found = {work.name: runs_of(runs, work) for work in works.values()}
    shown = [work for work in works.values() if found[work.name]]
    if not shown:
        return False
    rows = -(-len(shown) // COLUMNS)
    taking_part = [peer for peer in peers.values() if any(run["peer"] == peer.name for run in runs)]

    def paint(*axes: Axes) -> None:
        for axis, work in zip(axes, shown, strict=False):
            _paint(axis, work, found[work.name], taking_part)
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        for number, axis in enumerate(axes[: len(shown)]):
            if number % COLUMNS:
                axis.set_yticklabels([])

    size = (12.0, rows * (1.2 + 0.27 * len(taking_part)))
    style.save(paint, path, size=size, panels=(rows, min(COLUMNS, len(shown))))
    return True


def _paint(axis: Axes, work: Work, runs: Sequence[Mapping[str, Any]], peers: Sequence[Peer]) -> None:
    for row, peer in enumerate(peers):
        own = [run for run in runs if run["peer"] == peer.name]
        seconds = [run["seconds"] for run in own if not run["reason"]]
        color = style.COLORS[1] if peer.name.startswith(OWN) else style.COLORS[0]
        if seconds:
            axis.plot([min(seconds), max(seconds)], [row, row], color=color)
            axis.plot([np.median(seconds)], [row], "o", color=color)
        elif own:
            axis.annotate(
                "not finished",
                (1.0, row),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                color=style.FAILED,
                fontsize=8,
            )
    if not (work.is_real or work.is_crowded):
        axis.axvline(work.bound_seconds, color=style.UNKNOWN, linestyle="--", linewidth=1)
    axis.set_xlim(left=0)
    axis.set_ylim(len(peers) - 0.5, -0.5)
    axis.set_yticks(range(len(peers)), [peer.title for peer in peers])
    axis.set_title(work.title)
    axis.set_xlabel("submission to the end of the last trial (s)")
