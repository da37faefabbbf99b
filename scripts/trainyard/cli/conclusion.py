"""The conclusion of a study in words, for the captions of the report."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.config.config import Config
from trainyard.utils.errors import UserError

if TYPE_CHECKING:
    from trainyard.planning.history import History


@dataclass(frozen=True)
class Conclusion:
    """The best trial of a sweep or the recommended scale, as text: computed from the results when it is first written.

    As a parameter of a rule, it starts no rule again: Snakemake compares only parameters of its own types. A report
    writes it for each plot and for each caption.
    """

    config: Config
    kind: str
    name: str
    results: Path

    def __str__(self) -> str:
        """One or two sentences as reStructuredText; "" without results."""
        return self._text

    @property
    def unit(self) -> str:
        """What the slots of a sweep count in its pictures."""
        return self._read_history().counted_unit

    def _read_history(self) -> "History":
        from trainyard.planning.history import read_state

        return read_state(self.config.sweeps[self.name], self.name, self.results)

    @cached_property
    def _text(self) -> str:
        try:
            if self.kind == "sweeps":
                from trainyard.results.ranking import describe_ranking, rank_sweep

                best = describe_ranking(rank_sweep(self._read_history()))[0]
                text = f"{best[:1].upper()}{best[1:]}."
            elif self.kind == "scaling":
                from trainyard.scaling.speedups import recommendation
                from trainyard.utils.csv_files import read_table

                text = recommendation(read_table(self.results / "scaling" / self.name / "scaling.csv"))
            else:
                text = ""
        except UserError:  # a table does not exist yet
            return ""
        return re.sub(r"([*_`|\\])", r"\\\1", text)
