"""Trials with a ranking, made from a table as the plots get it."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from trainyard.config.metric_names import Mode, guess_mode
from trainyard.config.trial_status import TrialStatus
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.results.ranking import RankedTrial, Ranking, rank_configurations


def plotted(
    table: pd.DataFrame, keys: Sequence[str], metric: str, mode: Mode | None = None, log: Any = None
) -> PlottedTrials:
    """The trials of a table, ranked by one of its columns; without a mode, it is guessed.

    Each trial is a configuration of its own, unless the key `seed` is varied.
    """
    chosen, named = mode or guess_mode(metric), [*keys, *([] if "seed" in keys else ["trial"])]
    trials = [
        RankedTrial(row["trial"], {key: row[key] for key in named}, TrialStatus(row["status"]), float(row[metric]))
        for row in table.to_dict("records")
    ]
    configurations = rank_configurations(trials, chosen)
    return PlottedTrials(table, keys, Ranking(metric, chosen, mode is None, configurations), log or {})
