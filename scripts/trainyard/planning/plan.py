"""The plan of a sweep: which trials are pending, in what order, on how many slots, and how long that will take."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainyard.cluster.slurm_allocation import DEADLINE_MARGIN_SECONDS
from trainyard.config.config import Config
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Slots, Stop, Sweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import RESULT_VERSION, Trial, expand, relative_cost
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.attempts import Attempt, Session, find_result, group_by_trial, whole_epochs, whole_seconds
from trainyard.planning.early_stopping import Rule
from trainyard.planning.gpu_count import Option, choose, options
from trainyard.planning.journal_fold import Fold
from trainyard.planning.schedule import jobs_needed, makespan
from trainyard.planning.search import Suggestion, is_place, search_key, still_to_draw, suggestions
from trainyard.planning.task import folder_name, output_name
from trainyard.programs.metrics import find_divergence
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of
from trainyard.utils.text import format_duration

if TYPE_CHECKING:
    from trainyard.planning.duration_model import Prediction

NOT_STAGED: Final = "not staged"  # in place of a dataset's digest
TABLES_MINUTES: Final = 10  # walltime to ask for where only tables are to be written
UNPROVEN_MINUTES: Final = 60  # walltime to ask for before any trial of a sweep has shown what it takes
UNPROVEN_STARTUP_SECONDS: Final = 60.0  # from the start of the program to the first trial, before that was seen
UNPROVEN_MARGIN_SECONDS: Final = 60.0  # for what comes before the program and after the last trial, before it was seen
END_SECONDS: Final = 15.0  # to take everything down after the last trial
INTERVAL: Final = (0.05, 0.95)  # quantiles of what the makespan may be
SURE: Final = 0.99  # the quantile that a job must have time for


@dataclass(frozen=True)
class Plan:
    """What running a sweep now would mean. Trial identities are provisional until the dataset is staged."""

    name: str
    sweep: Sweep
    trials: dict[str, Trial]  # all, by identity, in the config's order
    tries: dict[str, list[Attempt]]  # what the journal knows of them
    startups: list[float]  # seconds from the start of the program to its first trial, of each time it ran
    sessions: list[Session] = field(default_factory=list)  # runs of the driver
    leads: list[float] = field(default_factory=list)  # seconds from the start of a Slurm job to that of the program
    slot_startups: list[float] = field(default_factory=list)  # seconds in which the process of a slot came up
    work: dict[str, float] = field(default_factory=dict)  # FLOPs of trials, where they have been counted
    found_share: float | None = None  # GPUs per trial, as `gpus_per_trial: auto` has found it
    limit_minutes: float = math.inf  # the longest walltime that can be asked for
    price: float | None = None  # of a GPU-hour
    suggestions: list[Suggestion] = field(default_factory=list)  # that a search has drawn
    search_key: str = ""  # which search
    dataset_digest: str = ""
    folder: Path | None = None  # of its results

    def generation(self, trial: str) -> int:
        """The `retrain` number that a trial's result must reach: an earlier result does not count any more."""
        retrain = self.sweep.retrain
        return retrain if isinstance(retrain, int) else max(retrain.get(trial, 0), retrain.get("all", 0))

    def result(self, trial: str) -> Attempt | None:
        """The attempt that gave a trial its metrics, or None while it is pending, or if it diverged."""
        return find_result(self.tries.get(trial, ()), self.generation(trial), early=self.sweep.stop is not None)

    def end(self, trial: str) -> Attempt | None:
        """The attempt after which a trial is not run again: its result, one that diverged or is unreadable."""
        tries, generation = self.tries.get(trial, ()), self.generation(trial)
        end = find_result(tries, generation, early=self.sweep.stop is not None, diverged=True)
        return end or self.unreadable(trial)

    def unreadable(self, trial: str) -> Attempt | None:
        """The attempt of a trial that did its work but told no metrics, as long as its output is kept: not pending."""
        last = self._last(trial)
        if last is None or last.outcome != TrialStatus.UNREADABLE or last.generation < self.generation(trial):
            return None
        return last if self.output_of(last).exists() else None

    def _last(self, trial: str) -> Attempt | None:
        """The last attempt of a trial, if there was any."""
        return next(reversed(self.tries.get(trial, ())), None)

    def seconds_of(self, attempt: Attempt) -> float | None:
        """What an attempt took, with what it continued of earlier ones."""
        return whole_seconds(self.tries[attempt.trial], attempt)

    def epochs_of(self, attempt: Attempt) -> list[dict[str, Any]]:
        """What an attempt told of each epoch, with what it continued of earlier ones."""
        return whole_epochs(self.tries[attempt.trial], attempt)

    def output_of(self, attempt: Attempt) -> Path:
        """What a command has said."""
        folder = (self.folder or Path()) / "trials" / folder_name(attempt.trial, attempt.generation)
        return folder / output_name(attempt.number)

    @cached_property
    def to_reread(self) -> list[Attempt]:
        """Ended attempts whose kept output was read with other `metrics` than there are now, or in vain.

        Also those that have diverged, after their work was done, by a metric that is not watched any more.
        """
        ended = [self.end(name) for name in self.trials if self.sweep.command]
        return [each for each in ended if each and self._is_outdated(each) and self.output_of(each).exists()]

    def _is_outdated(self, end: Attempt) -> bool:
        if end.outcome == TrialStatus.UNREADABLE or end.metrics_digest != metrics_digest(self.sweep.metrics):
            return True
        if end.outcome != TrialStatus.DIVERGED or end.early:
            return False
        return end.error not in {find_divergence({name: None}, [name]) for name in self.sweep.monitored_metrics}

    @cached_property
    def pending(self) -> list[str]:
        """Trials that are to be run, longest first by the best cost known; those that failed before come last."""
        costs = self.seconds or self._relative_costs(self._unfinished)
        return sorted(self._unfinished, key=lambda name: (self._has_failed(name), -costs.get(name, 0.0)))

    def _has_failed(self, name: str) -> bool:
        """Whether the last attempt of a trial failed."""
        last = self._last(name)
        return last is not None and last.outcome == TrialStatus.FAILED

    @cached_property
    def _unfinished(self) -> list[str]:
        """Trials that are to be run, in the config's order."""
        return [name for name in self.trials if self.end(name) is None]

    @property
    def to_run(self) -> list[str]:
        """The pending trials that are known: not what a search is still to draw."""
        return [name for name in self.pending if not is_place(name)]

    @cached_property
    def stop(self) -> Stop | None:
        """When to end trials early; with the epochs of a whole one, where trials tell them."""
        stop, epochs = self.sweep.stop, {trial.epochs for trial in self.trials.values()}
        if stop and stop.epochs is None and len(epochs) == 1:
            return stop.model_copy(update={"epochs": epochs.pop()})
        return stop

    def rule(self) -> Rule | None:
        """Which trials to end early, going by what the journal knows of them, less what `retrain` has overruled."""
        if self.stop is None:
            return None
        tries = [(attempt, self.generation(name)) for name in self.trials for attempt in self.tries.get(name, ())]
        return Rule(self.stop, [attempt for attempt, wanted in tries if attempt.generation >= wanted])

    @property
    def shares_open(self) -> bool:
        """Whether it is still to be found out how many trials can share a GPU."""
        return self.sweep.slots.gpus_per_trial == "auto" and self.found_share is None

    @cached_property
    def _limit(self) -> Slots:
        """The config's slots, with the share that was found where it leaves that open."""
        slots = self.sweep.slots
        if slots.gpus_per_trial != "auto" or self.found_share is None:
            return slots
        return slots.model_copy(update={"gpus_per_trial": self.found_share})

    @property
    def share(self) -> float:
        """GPUs per trial."""
        return self._limit.share

    @cached_property
    def slots(self) -> Slots:
        """What the job asks for: what the config says, or up to that, what suits the goal best.

        Where only tables are to be written, it is one node without GPUs.
        """
        if not self.pending:
            return self._limit.model_copy(update={"nodes": 1, "gpus_per_node": 0})
        if not self._limit.auto:
            return self._limit
        deadline = self.sweep.deadline_seconds if self.seconds else None
        return choose(self.options, self.sweep.goal, deadline=deadline, surely=self._surely).slots

    def _surely(self, option: Option) -> float:
        """Seconds from the start of the job that an option will hardly exceed."""
        spans = self._spans(option.slots.count)
        return self.startup_seconds + (_quantile(spans, SURE) if spans else math.inf)

    @property
    def durations(self) -> list[float]:
        """Expected seconds of the pending trials in their order; without evidence, in proportions."""
        costs = self.seconds or self._relative_costs(self.pending)
        return [costs.get(name, 1.0) for name in self.pending]

    @cached_property
    def options(self) -> list[Option]:
        """Numbers of GPUs that can be asked for; without evidence, in proportions."""
        return options(self.durations, self._limit, startup=self.startup_seconds if self.seconds else 0.0)

    @cached_property
    def _prediction(self) -> "Prediction | None":
        """What the unfinished trials will take; None without evidence."""
        return self.predict(self._unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> "Prediction | None":
        """What trials will take, from the journal and from the seconds of what has `finished` since."""
        if not names:
            return None
        seen = {name: result for name in self.trials if (result := _last_finished(self, name))}
        known = {name: self.seconds_of(result) for name, result in seen.items()} | dict(finished)
        if not known:
            return None
        from trainyard.planning.duration_model import predict  # numpy: not for a dry run that has nothing to predict

        drawn = cycle(name for name in known if not is_place(name))  # what is still to be drawn counts as one of these
        names = [next(drawn) if is_place(name) else name for name in names]
        relative = self._relative_costs([*names, *known])
        return predict(
            [self.trials[name] for name in names],
            [(self.trials[name], seconds) for name, seconds in known.items() if seconds],
            relative=[relative[name] for name in (*names, *known)] if relative else None,
        )

    @property
    def known(self) -> int:
        """Trials of which it is known what they take."""
        return sum(_last_finished(self, name) is not None for name in self.trials)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the pending trials; empty without evidence."""
        return dict(zip(self._unfinished, self._prediction.seconds.tolist(), strict=True)) if self._prediction else {}

    @cached_property
    def least_seconds(self) -> dict[str, float]:
        """What the pending trials will hardly fall short of; empty without evidence."""
        if self._prediction is None:
            return {}
        return dict(zip(self._unfinished, self._prediction.least().tolist(), strict=True))

    def _relative_costs(self, names: list[str]) -> dict[str, float]:
        """Costs in proportion: the user's, or else FLOPs; empty unless all are known."""
        if self.sweep.cost is None:
            return {name: self.work[name] for name in names} if self.work.keys() >= set(names) else {}
        return {name: relative_cost(self.sweep.cost, self.trials[name]) for name in names}

    @property
    def failed_before(self) -> int:
        """Pending trials whose last attempt failed."""
        return sum(map(self._has_failed, self.pending))

    @property
    def predicted_seconds(self) -> float | None:
        """Makespan of the pending trials, without the start-up; None before there is evidence."""
        return self._makespan(self.slots.count)

    @cached_property
    def predicted_range(self) -> tuple[float, float] | None:
        """Between what the makespan will be in nine of ten cases; None before there is evidence."""
        expected, spans = self.predicted_seconds, self._likely_spans
        if expected is None or not spans:
            return None
        low, high = (_quantile(spans, share) for share in INTERVAL)
        return min(low, expected), max(high, expected)

    @cached_property
    def sure_seconds(self) -> float | None:
        """What the makespan will hardly exceed: a job must have time for it. None before there is evidence."""
        if self.predicted_range is None:
            return None
        return max(_quantile(self._likely_spans, SURE), self.predicted_range[1])

    @cached_property
    def _likely_spans(self) -> list[float]:
        return self._spans(self.slots.count)

    def _makespan(self, slots: int) -> float | None:
        return makespan([self.seconds[name] for name in self.pending], slots) if self.seconds else None

    def _spans(self, slots: int) -> list[float]:
        """What the makespan may be, each as likely as another, the shortest first; empty without evidence."""
        if self._prediction is None:
            return []
        place = {name: index for index, name in enumerate(self._unfinished)}
        order = [place[name] for name in self.pending]
        return sorted(makespan(draw, slots) for draw in self._prediction.draws[:, order].tolist())

    @property
    def startup_seconds(self) -> float:
        """From the start of the program to the first trial: the longest that was seen."""
        return max(self.startups, default=UNPROVEN_STARTUP_SECONDS)

    @property
    def margin_seconds(self) -> float:
        """Of a job, for what comes before the program and after the last trial."""
        if not self.leads:
            return UNPROVEN_MARGIN_SECONDS + self.sweep.trial_grace_seconds
        return max(self.leads) + DEADLINE_MARGIN_SECONDS + self.sweep.trial_grace_seconds + END_SECONDS

    @property
    def _needed_minutes(self) -> int:
        """What the trials will hardly exceed, the start-up, and a margin."""
        if not self.pending:
            return TABLES_MINUTES
        if self.sure_seconds is None:
            return UNPROVEN_MINUTES
        return math.ceil((self.sure_seconds + self.startup_seconds + self.margin_seconds) / 60)

    @property
    def walltime_minutes(self) -> int:
        """What to ask of the scheduler: what is needed, but no more than can be asked for."""
        return int(min(self._needed_minutes, max(1.0, self.limit_minutes)))

    @property
    def jobs(self) -> int:
        """Jobs, one after another, that the pending trials take: more than one where the walltime is limited.

        Each spends its start-up and its margins anew. It continues the trials that the last one interrupted; those
        that cannot resume must end within one job.
        """
        if self._needed_minutes <= self.limit_minutes or self.predicted_range is None or not self.predicted_seconds:
            return 1
        useful = max(60.0, self._useful_seconds)
        if self.sweep.can_resume:
            return math.ceil(self.predicted_range[1] / useful)
        longer = self.predicted_range[1] / self.predicted_seconds
        return jobs_needed([longer * self.seconds[name] for name in self.pending], self.slots.count, seconds=useful)

    @property
    def _useful_seconds(self) -> float:
        """Seconds of training in the longest job that can be asked for."""
        return 60 * self.limit_minutes - self.startup_seconds - self.margin_seconds

    @cached_property
    def too_long(self) -> list[str]:
        """Pending trials that cannot resume and surely take longer than any job may, longest first."""
        if self.sweep.can_resume:
            return []
        return [name for name in self.pending if self.least_seconds.get(name, 0.0) > self._useful_seconds]

    def check_retrain(self) -> None:
        """See that `retrain` names trials of this sweep, as far as they are known before the dataset is staged.

        Raises:
            UserError: it does not.
        """
        names = self.sweep.retrain if isinstance(self.sweep.retrain, dict) else {}
        unknown = [name for name in names if name != "all" and name not in self.trials]
        if unknown and self.dataset_digest != NOT_STAGED:
            raise UserError(f"sweeps.{self.name}.retrain: not a trial of this sweep: {', '.join(unknown)}; "
                            "take the names from the column `trial` of trials.csv")  # fmt: skip

    @property
    def too_long_words(self) -> str:
        """Which trials are too long for a job, and what to do about it."""
        longest = self.too_long[0]
        what = f"trial {longest} takes at least {format_duration(self.least_seconds[longest])} and cannot resume"
        limit = f"a job may take at most {format_duration(60 * self.limit_minutes)}"
        key = "`checkpoint`" if self.sweep.command is not None else "`resumable: true` if the function can resume"
        return f"{what}, but {limit}: ask for a partition with a longer limit, or give {key}"

    @property
    def gpu_hours(self) -> float | None:
        """What the pending trials will take, start-ups included; None before there is evidence."""
        if self.predicted_seconds is None:
            return None
        return self.slots.gpus * (self.predicted_seconds + self.jobs * self.startup_seconds) / 3600

    @property
    def asked_gpu_hours(self) -> float:
        """What is asked for."""
        return self.slots.gpus * self.jobs * self.walltime_minutes / 60

    @cached_property
    def digest(self) -> str:
        """Changes when the set of results that the sweep must have changes, and only then: the rule's parameter."""
        content: list[object] = [trial.content for trial in self.trials.values()]
        if self.sweep.search:
            content = [self.sweep.search.model_dump(), self.sweep.spec_content]
        stop = [self.sweep.stop.content] if self.sweep.stop else []
        # For these, what is kept is read again, and nothing runs.
        heard = [self.sweep.metrics.digest] if self.sweep.metrics else []
        watched = [self.sweep.metric] if self.sweep.command and self.sweep.metric else []
        return digest_of([content, RESULT_VERSION, self.sweep.retrain, *stop, *heard, *watched])


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _last_finished(plan: Plan, name: str) -> Attempt | None:
    """Any finished attempt with a duration, also one that `retrain` has overruled: it is evidence all the same.

    If one is known that had as much of a GPU as the next will have, no other.
    """
    tries = plan.tries.get(name, ())
    alike = [each for each in tries if each.gpus_per_trial == plan.share]
    result = find_result(alike) or find_result(tries)
    return result if result and result.seconds else None


def plan_sweep(
    config: Config, name: str, results: Path, *, limit_minutes: float = math.inf, fold: Fold | None = None
) -> Plan:
    """The plan of a sweep, from the config and from what `results` holds of its dataset and journal.

    No job may take longer than `limit_minutes`. Whoever plans again and again gives the `fold` of the journal, of which
    then only what is new is read.
    """
    sweep = config.sweeps[name]
    digest = dataset_digest(results, sweep)
    known = (fold or Fold(results / "sweeps" / name / "journal.jsonl")).update()
    runs = known.sessions
    key = search_key(sweep, digest)
    drawn = suggestions(known.suggested, sweep, digest, key)
    trials = expand(sweep).by_name(digest)
    trials |= {each.name: each.trial for each in drawn} | still_to_draw(sweep, len(drawn))
    return Plan(
        name,
        sweep,
        trials,
        tries=group_by_trial(known.attempts.values()),
        sessions=list(runs),
        startups=[run.startup_seconds for run in runs if run.startup_seconds is not None],
        leads=[run.info.lead_seconds for run in runs if run.info.lead_seconds is not None],
        slot_startups=[seconds for run in runs for seconds in run.slot_startups],
        work=dict(known.work),
        found_share=known.share,
        limit_minutes=limit_minutes,
        price=config.pricing.gpu_hour,
        suggestions=drawn,
        search_key=key,
        dataset_digest=digest,
        folder=results / "sweeps" / name,
    )


def dataset_digest(results: Path, study: Sweep | Scaling) -> str:
    """The digest of the staged dataset, if the study has one; before it is staged, what no dataset has."""
    if study.dataset is None:
        return "no dataset"
    try:
        return str(json.loads((results / "data" / study.dataset / "meta.json").read_text())["digest"])
    except FileNotFoundError:
        return NOT_STAGED
