"""The plot of a tree study."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trainyard.report.style import COLORS
from trainyard.utils.text import count_of, format_precise_duration


def plot_scores(axes: Axes, trees: pd.DataFrame) -> None:
    """Training and validation score of every tree model; its label contains the seconds of the fit."""
    rows = np.arange(len(trees))
    for offset, split, color in ((-0.17, "train", COLORS[4]), (0.17, "val", COLORS[0])):
        name = {"train": "training", "val": "validation"}[split]
        bars = axes.barh(rows + offset, trees[split], height=0.32, color=color, label=name)
        axes.bar_label(bars, fmt="{:.4g}", padding=3, fontsize=8)
    axes.set_yticks(
        rows,
        [
            f"{row.model}\n{format_precise_duration(row.seconds)}, {count_of(row.threads, 'thread')}"
            for row in trees.itertuples()
        ],
    )
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel({"accuracy": "accuracy", "rmse": "RMSE (in the target's unit)"}[trees["metric"].iloc[0]])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2)
