"""The summary at the end of each run: what finished, the answers, what failed, where the results are, what is next."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trainyard.cli.again import call_again, call_with_config
from trainyard.config.config import Config
from trainyard.packing.completeness import describe_failure, summarize_sweep
from trainyard.planning.plan import read_state
from trainyard.results.best_config import FILE, find_files, has_study, paste_line, study_name, write_best
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.utils.errors import StorageError
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.text import count_of, format_duration
from trainyard.utils.typed_commands import as_typed

STYLE: Final = SCRIPTS.parent / "workflow/report/report.css"
SHOWN: Final = 8  # studies, failures
NOUNS: Final = {"stage": "dataset", "sweep": "sweep", "train": "scaling",
                "fit_trees": "trees"}  # fmt: skip
OF_STUDIES: Final = {"sweeps": ("sweep", "table_sweeps"), "scaling": ("table_scaling",)}
State = Literal["finished", "failed", "interrupted", "left"]


@dataclass(frozen=True)
class RunJob:
    """A job of a run of Snakemake, and what became of it."""

    rule: str
    name: str  # of the dataset or study; "" for others
    scale: str  # of a scaling study, else ""
    log: str
    state: State


def read_jobs(workflow: Any) -> list[RunJob]:
    """The jobs of a run that has ended, from a `snakemake.workflow.Workflow`, in the order of their names."""
    dag, scheduler = workflow.dag, workflow.scheduler

    def read(job: Any) -> RunJob:
        states: dict[State, bool] = {
            "failed": job in scheduler.failed,
            "interrupted": job in scheduler.running,
            "finished": dag.finished(job),
        }
        state: State = next((state for state, holds in states.items() if holds), "left")
        name, scale = (str(job.wildcards.get(key, "")) for key in ("name", "scale"))
        return RunJob(job.rule.name, name, scale, next(map(str, job.log), ""), state)

    jobs = [read(job) for job in dag.needrun_jobs(exclude_finished=False)]
    return sorted(jobs, key=lambda job: (job.rule, job.name, job.scale))


@dataclass(frozen=True)
class RunSummary:
    """What a run of Snakemake came to."""

    config: Config
    results: Path
    jobs: Sequence[RunJob]
    seconds: float
    succeeded: bool
    argv: Sequence[str]  # the command line of the run
    targets: frozenset[str] = frozenset()
    interrupted: bool = False

    def text(self) -> str:
        """The summary, in lines with a heading each. Also writes best.yaml of each sweep, so that both agree."""
        parts = {
            "finished": [_list(self._work("finished")) or "nothing new" * (not self.interrupted)],
            "failed": self._failures(),
            "not done": [_list(self._work("interrupted", "left"))],
            "answers": self._answers(),
            "results": [f"{self.results.absolute()}: {_list(self._folders())}"],
            "next": self._next_steps(),
        }
        end = "done" if self.succeeded else "interrupted" * self.interrupted or "ended before everything was done,"
        lines = [f"Trainyard: {end} after {format_duration(self.seconds)}"]
        for heading, content in parts.items():
            lines += [f"  {'' if number else heading:<9} {line}" for number, line in enumerate(filter(None, content))]
        return "\n".join(lines)

    def _folders(self) -> list[str]:
        return [f"{name}/" for name in ("tables", "plots", "logs") if (self.results / name).exists()]

    def _work(self, *states: State) -> list[str]:
        """Datasets and studies with a job in one of these states; a scaling study with its scales."""
        found: dict[str, list[str]] = {}
        for rule, noun in NOUNS.items():
            for job in self.jobs:
                if job.rule == rule and job.state in states:
                    found.setdefault(f"{noun} {job.name}", []).append(job.scale)
        return [name + f" ({', '.join(scales)})" * any(scales) for name, scales in found.items()]

    def _failures(self) -> list[str]:
        failed = [job for job in self.jobs if job.state == "failed"]
        names = (f"{NOUNS.get(job.rule, job.rule)} {job.name} {job.scale}".rstrip() for job in failed)
        return _first([f"{name}: see {job.log}" for name, job in zip(names, failed, strict=True)])

    def _touched(self, kind: str) -> list[str]:
        """The studies of a kind that this run worked on, as far as they are shown."""
        names = {job.name for job in self.jobs if job.rule in OF_STUDIES[kind] and job.state != "left"}
        return [name for name in getattr(self.config, kind) if name in names][:SHOWN]

    def _answers(self) -> list[str]:
        sweeps = [line for name in self._touched("sweeps") for line in self._sweep_answer(name)]
        return sweeps + [line for name in self._touched("scaling") for line in self._scaling_answer(name)]

    def _sweep_answer(self, name: str) -> list[str]:
        state = read_state(self.config.sweeps[name], name, self.results)
        ranking = rank_sweep(state)
        failed = [last for name in state.unfinished if state.has_failed(name) and (last := state.last_attempt(name))]
        best, *runner_up = describe_ranking(ranking)
        best = f"so far: {best}" if self.interrupted else best
        lines = [summarize_sweep(state), *map(describe_failure, failed[:1]), best, *runner_up]
        if ranking.best_trial:
            files, line = find_files(state, ranking), paste_line(state, ranking)
            lines += [f"its files: {files}"] * bool(files)
            lines += [f"by hand: {line}"] * (line is not None and "\n" not in line)
        with suppress(StorageError):  # a sweep writes it at its end, which an error or a signal may have prevented
            path = write_best(self.config, state, ranking)
            lines += [f"its config: {path}"] * (ranking.best_trial is not None)
        return [lines[0], *(f"  {line}" for line in lines[1:])]

    def _scaling_answer(self, name: str) -> list[str]:
        table = self.results / "scaling" / name / "scaling.csv"
        if not table.exists():
            return []
        from trainyard.scaling.table import recommendation
        from trainyard.utils.csv_files import read_table  # pandas takes a second to import

        return [f"scaling {name}: {recommendation(read_table(table))}"]

    def _next_steps(self) -> list[str]:
        if self.interrupted:
            return ["run the same command to go on: what has finished is kept"]
        if not self.succeeded:
            return ["correct the cause and run the same command again: what has finished is kept"]
        steps = [step for name in self._touched("sweeps") for step in self._retry(name)]
        if not self.targets and "MAKELEVEL" not in os.environ:  # `make run` writes it
            options = ("--report", "report.html", "--report-stylesheet", as_typed(STYLE))
            steps.append(f"write the report: {call_again(self.argv, *options)}")
        trained = [name for name in self._touched("sweeps") if has_study(self.config.sweeps[name])]
        best = self.results / "sweeps" / (trained or [""])[0] / FILE
        if trained and best.exists():
            call = call_with_config(self.argv, best, "scaling", but=self.targets)
            steps.append(
                f"train the best of sweep {trained[0]} with checkpoints, as scaling study "
                f"{study_name(trained[0])}: {call}"
            )
        return steps

    def _retry(self, name: str) -> list[str]:
        """How to run the failed trials of a sweep again, which the same command does not."""
        state = read_state(self.config.sweeps[name], name, self.results)
        if not (failed := state.failed_before):
            return []
        call = call_again(self.argv, "--forcerun", str(state.folder / "trials.csv"))
        return [f"run {count_of(failed, 'failed trial')} of sweep {name} again, once the cause is corrected: {call}"]


def _first(lines: list[str]) -> list[str]:
    """The first lines, and how many are left out."""
    return lines[:SHOWN] + [f"and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)


def _list(words: list[str]) -> str:
    return ", ".join(_first(words))
