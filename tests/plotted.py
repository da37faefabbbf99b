"""What plots get: trials with a ranking, and the tables of jobs and strategies of a small sweep."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from trainyard.config.metric_names import Mode, guess_mode
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.trial_value import TrialValue
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.results.ranking import RankedTrial, Ranking, rank_configurations

STRATEGIES = pd.DataFrame(
    {
        "strategy": ["separate_jobs", "job_array", "packed"],
        "jobs": [3, 3, 2],
        "gpus_per_job": [1, 1, 2],
        "requested_seconds_per_job": [11.5, 18, 6.5],
        "requested_job_seconds": [34.5, 54, 13],
        "requested_gpu_seconds": [34.5, 54, 26],
        "running_gpu_seconds": 17.0,
        "wasted_gpu_seconds": [6, 6, 9],
        "wasted_fraction": [6 / 23, 6 / 23, 9 / 26],
        "startup_gpu_seconds": [6, 6, 2],
        "used_gpu_seconds": [23.0, 23, 26],
    }
)
JOBS = pd.DataFrame(
    {
        "start": [99.5, 4999.5],
        "slots": 2,
        "gpus": 2,
        "startup_seconds": 0.5,
        "requested_seconds": None,
        "elapsed_seconds": [10.5, 2.5],
        "predicted_seconds": [None, 11.5],
        "measured_seconds": [10, 12.0],
        "gap": [None, 0.04],
        "failed_gpu_seconds": [4.0, 0.0],
        "idle_gpu_seconds": [1.0, 2.0],
        "counted": True,
        "order_job": 0,
        "session": ["first", "second"],
    }
)


def plotted(
    table: pd.DataFrame,
    keys: Sequence[str],
    metric: str,
    mode: Mode | None = None,
    log: Any = None,
    paired: Any = None,
) -> PlottedTrials:
    """The trials of a table, ranked by one of its columns; without a mode, it is guessed.

    Each trial is a configuration of its own, unless the key `seed` is varied.
    """
    chosen, named = mode or guess_mode(metric), [*keys, *([] if "seed" in keys else ["trial"])]
    trials = [
        RankedTrial(
            row["trial"], {key: row[key] for key in named}, TrialStatus(row["status"]), TrialValue(float(row[metric]))
        )
        for row in table.to_dict("records")
    ]
    configurations = rank_configurations(trials, chosen)
    return PlottedTrials(table, keys, Ranking(metric, chosen, mode is None, configurations), log or {}, paired)
