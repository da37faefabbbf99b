"""The best configuration of a sweep (ranking, best.yaml), and results as data frames for notebooks."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes a second to import
    import pandas as pd


@dataclass(frozen=True)
class SweepResults:
    """The tables of a sweep, as docs/results.md describes them; times are in Unix seconds."""

    name: str
    trials: "pd.DataFrame"  # one row per trial
    epochs: "pd.DataFrame"  # one row per epoch of each trial
    timeline: "pd.DataFrame"  # one row per attempt
    ranking: "pd.DataFrame"  # one row per configuration, best first
    strategies: "pd.DataFrame"  # what the sweep cost, and what it would have cost otherwise
    jobs: "pd.DataFrame"  # one row per Slurm job

    @property
    def best(self) -> "pd.Series[Any]":
        """The row in `trials` of the best trial of the best configuration.

        Raises:
            LookupError: no configuration has finished with the metric that ranks the sweep and meets its constraints.
        """
        rows = self.trials[self.trials["trial"].isin(self.ranking.loc[self.ranking["place"] == 1, "trial"])]
        if rows.empty:
            finished = f"no configuration of sweep {self.name} has finished with the metric that ranks it"
            raise LookupError(f"{finished} and meets the constraints, if there are any")
        return rows.iloc[0]


@dataclass(frozen=True)
class StudyResults:
    """The tables of a scaling study, as docs/results.md describes them."""

    name: str
    scaling: "pd.DataFrame"  # one row per scale
    history: "pd.DataFrame"  # one row per epoch of each run, with its `scale` and `repeat`


def load_sweep(path: Path | str, *, text: Iterable[str] = ()) -> SweepResults:
    """The tables of the sweep in a folder such as `results/sweeps/depth`.

    The columns `text` are text, also where it looks like a number.

    Raises:
        UserError: a table does not exist, because the sweep has not finished.
    """
    from trainyard.utils.csv_files import read_table

    folder = Path(path)
    names = [each.name for each in fields(SweepResults) if each.name != "name"]
    return SweepResults(folder.name, **{name: read_table(folder / f"{name}.csv", text) for name in names})


def load_study(path: Path | str) -> StudyResults:
    """The tables of the scaling study in a folder such as `results/scaling/width`.

    Raises:
        UserError: a table does not exist, because the study has not finished.
    """
    import pandas as pd

    from trainyard.utils.csv_files import read_table

    folder = Path(path)
    scaling = read_table(folder / "scaling.csv")
    histories = list[pd.DataFrame]()
    for scale, repeats in zip(scaling["scale"], scaling["repeats"], strict=True):
        for repeat in range(1, repeats + 1):
            run = folder / scale / f"repeat-{repeat}" if repeat > 1 else folder / scale
            histories.append(read_table(run / "history.csv").assign(scale=scale, repeat=repeat))
    return StudyResults(folder.name, scaling, pd.concat(histories, ignore_index=True))
