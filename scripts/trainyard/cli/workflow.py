"""The config as the Snakefile sees it: functions for the parameters and resources of the rules."""

import atexit
import logging
import os
import shlex
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import Finding, refuse_mistakes
from trainyard.cli.command_line import INTERRUPT_CODE
from trainyard.cli.conclusion import Conclusion
from trainyard.cli.job_resources import StagingJobs, SweepJobs, TrainJobs, Wildcards, match_any
from trainyard.cli.paths import check_paths
from trainyard.cli.profile import Profile
from trainyard.cli.progress import describe_progress
from trainyard.cli.run_summary import JobFailure, RunSummary, notify, read_jobs
from trainyard.cli.screen import SCREEN
from trainyard.cluster.stop_request import POLL_SECONDS
from trainyard.config.datasets import has_images, needs_download
from trainyard.config.load import as_given, check_config, config_copy
from trainyard.config.train import NAME_PATTERN
from trainyard.config.trials import published_weights
from trainyard.config.weights import weights_receipt
from trainyard.planning.added_trials import announce_config
from trainyard.planning.attempts import Fold
from trainyard.planning.job_costs import PlannedJob, plan_jobs
from trainyard.planning.job_marks import DONE, JOBS, RUN
from trainyard.planning.receipts import is_outdated, overview_terms, table_terms
from trainyard.programs.user_environment import RECORD, record_environment
from trainyard.report.plot_list import PLOT_LABELS, ordered_labels, plots_of
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.typed_commands import typed_argv

log = logging.getLogger("workflow")
# The end of a message with a scheduler. Snakemake fills in what the job requests after all overrides.
REQUESTS: Final = "; to be submitted with "
_REQUESTED: Final = (
    "{resources.hardware}, CPUs per node: {threads}, memory per node: {resources.mem} ({resources.memory}), "
    "walltime: {resources.runtime} min"
)
TABLE_LABELS: Final = {"sweeps": "trials: charts and table", "scaling": "table"}


@dataclass(frozen=True)
class PlotRule:
    """A rule that draws the same plots of several datasets or studies."""

    name: str
    names: str  # a regular expression that matches the names of these datasets or studies
    labels: dict[str, str]  # by plot


class Workflow:
    """The checked config, as the Snakefile sees it."""

    name_pattern = NAME_PATTERN
    categories: Final = ordered_labels(
        {"overview": "Overview", "sweeps": "Sweeps", "scaling": "Scaling", "data": "Data"}
    )
    # Made by tables.py, with a receipt for the last one
    derived_tables: ClassVar = {"sweeps": ["strategies", "jobs", "ranking"], "scaling": ["scaling"]}
    # Of rules that run where Snakemake does. Snakemake's own default of mem_mb depends on the sizes of inputs, which it
    # cannot find out for a report, and warns.
    here: ClassVar = {"machine": 1, "mem_mb": 2000}

    def __init__(
        self,
        raw: dict[str, Any],
        *,
        results: Path,
        profile: Profile | None = None,
        config_files: Iterable[Path | str] = (),
        deployment: Collection[Any] = (),
        prefixed: Path | None = None,
        is_dry_run: Callable[[], bool] = lambda: True,
        make_again: Callable[[str], None] = lambda output: None,
    ) -> None:
        """The rules name their files in `results`. In a module with a `prefix`, Snakemake puts them in `prefixed`.

        `make_again` has Snakemake make an output again.
        """
        logging.raiseExceptions = False  # Snakemake's log on a full disk would print a stack trace for each line
        self._began = time.monotonic()
        self._is_interrupted = False
        self._failures = dict[int, JobFailure]()  # by Snakemake's numbers of jobs
        self.config = check_config(raw, source=", ".join(Path(file).name for file in config_files) or "config")
        self._declared = results
        self._results = prefixed or results
        self._folds = {name: Fold(self._results / "sweeps" / name) for name in self.config.sweeps}
        self._make_again = make_again
        self._deployment = {method.name for method in deployment}
        self.profile = profile or Profile(None)
        self.profile.check()
        used = (Path.cwd(), Path(sys.prefix), *map(Path, config_files))
        check_paths(SCRIPTS.parent, used, uses_slurm=self.profile.has_scheduler)
        self.config_file = config_copy(self.config, self._results)
        site = (self.config, self._results, self.profile)
        self.stage = StagingJobs(*site)
        self.train = TrainJobs(*site)
        self.sweep = SweepJobs(*site, is_dry_run=is_dry_run)

    def program(self, name: str) -> Callable[..., str]:
        """The command line of a program in `scripts/` up to its own options, as a parameter of a rule.

        The function takes the output, although it does not use it: Snakemake compares such a parameter with none of an
        earlier run. `shell.prefix` would be simpler, but also holds for the rules of a workflow that imports these.
        """

        def command(wildcards: Wildcards, output: Any) -> str:
            options = ["--config", str(self.config_file), "--results", str(self._results)]
            python = shlex.quote(sys.executable)
            before = ""
            # With --sdm, Snakemake activates another environment for each rule. With conda, users' programs still run
            # in the user's own one. A container has other paths.
            if "APPTAINER" in self._deployment:
                python = "python"
            elif "CONDA" in self._deployment:
                python = "python"
                before = f"export {RECORD}={shlex.quote(record_environment())}; "
            # Snakemake loads the modules before the command, and goes on without those that cannot be loaded. To load
            # one twice does nothing. Their code may read any variable: +u.
            if "ENV_MODULES" in self._deployment and self.config.env_modules:
                before = f"set +u; module load {shlex.join(self.config.env_modules)} && {before}"
            return f"{before}exec {python} {shlex.join([str(SCRIPTS / f'{name}.py'), *options])}"

        return command

    def begin(self) -> None:
        """Prepare a run: its jobs read this config, and inherit the name of the run."""
        os.environ.setdefault(RUN, uuid.uuid4().hex)
        self.sweep.forget_complete()
        self.write_config()
        os.utime(self.config_file)  # it is that of the last run

    def write_config(self) -> None:
        """Write the config of this run, command-line overrides included, for the programs to read, if it is not there.

        The results may be deleted while a run waits.
        """
        if not self.config_file.exists():
            write_json(self.config_file, as_given(self.config))

    def announce(self, job: Any) -> None:
        """Tell the jobs of the sweep of a job what its config has gained."""
        self.write_config()
        for each in job.jobs if job.is_group() else [job]:
            if each.resources.get("pending"):  # a sweep's
                announce_config(self.config, each.wildcards.name, self._results)

    def note_failure(self, job: Any, failure: JobFailure) -> None:
        """Keep for the summary why a job of Snakemake has failed, where its log does not say it."""
        self._failures[job.jobid] = failure

    def describe_progress(self) -> list[str]:
        """How far each sweep is that has trials left: a line each."""
        return describe_progress(self.config, self._results, self._folds)

    def pass_on_interrupt(self, run: Any) -> None:
        """At SIGINT, also tell the programs of a run, a `snakemake.workflow.Workflow`, to save their state and end.

        Ctrl-C reaches them without this, but a signal to Snakemake alone does not, which waits for their end. Snakemake
        would then print the end of each as an error.
        """
        from snakemake.shell import shell

        def tell() -> None:
            while True:  # a program may be about to start
                for job in list(run.scheduler.running):
                    shell.terminate(job.jobid)  # once: SIGTERM
                time.sleep(POLL_SECONDS)

        def wait(*_: object) -> None:  # for the programs, which a second Ctrl-C ends at once; a third ends Snakemake
            signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupt(*_: object) -> NoReturn:
            signal.signal(signal.SIGINT, wait)
            self._is_interrupted = True
            SCREEN.take_over()
            threading.Thread(target=tell, daemon=True).start()
            raise KeyboardInterrupt

        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as by `snakemake &` in a script
        if not is_ignored and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)

    def answer_at_rest(self, run: Any) -> None:
        """Print the summary of a run, a `snakemake.workflow.Workflow`, also if nothing is to be done.

        Snakemake calls neither `onstart` nor `onsuccess` then.
        """
        from snakemake.common import NOTHING_TO_BE_DONE_MSG
        from snakemake.logging import logger

        def note(record: logging.LogRecord) -> bool:
            if self.profile.is_main and record.msg == NOTHING_TO_BE_DONE_MSG:
                atexit.register(self.print_summary, run, succeeded=True)
            return True

        logger.addFilter(note)

    def print_summary(self, run: Any, *, succeeded: bool) -> None:
        """Print what a run, a `snakemake.workflow.Workflow`, came to; nothing after `--touch`, which runs no job.

        After an interrupt, it is the last that Snakemake prints, without the error that not all jobs have completed.
        With trials left to run, the exit code is 1, also if Snakemake succeeded; after an interrupt, it is 130.
        """
        seconds = time.monotonic() - self._began
        code = INTERRUPT_CODE if self._is_interrupted else 0
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):  # of Snakemake, for jobs to submit: it would wait a second for it
                thread.cancel()
        try:
            jobs = read_jobs(run, self._failures)
            targets = frozenset(run.dag_settings.targets)
            summary = RunSummary(
                self.config, self._results, jobs, seconds, succeeded, typed_argv(), targets, self._is_interrupted
            )
            if not run.touch:
                code = code or int(succeeded and not summary.is_done)
                summary.write_best()
                summary.announce_ends()
                SCREEN.erase_progress()
                print(text := summary.text(), flush=True)
                if self._is_interrupted:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C ends this at once
                if not succeeded:
                    for job in run.scheduler.running:  # by its mark, Snakemake would refuse to run it again
                        if job.rule.name in ("sweep", "sweep_tables"):
                            run.persistence.cleanup(job)
                    summary.write_tables()
                is_news = not self._is_interrupted and all(job.state != "kept" for job in jobs)
                if self.config.notify and is_news and (problem := notify(self.config.notify, text)):
                    print(f"notify: {problem}", flush=True)
        except Exception as error:  # which must not fail a run that succeeded
            print(f"the summary or the tables of this run are not complete: {error}", flush=True)
        if code:
            raise SystemExit(code)

    def check(self, *, dry_run: bool) -> None:
        """Check all that can be checked before a job is queued, and log what is no mistake.

        Raises:
            UserError: something is wrong; the message lists everything that is.
        """
        self.sweep.check()
        has_scheduler = self.profile.has_scheduler
        findings = check_use(
            self.config,
            self._results,
            has_scheduler=has_scheduler,
            dry_run=dry_run,
            in_container="APPTAINER" in self._deployment,
            other_environment=not self._deployment.isdisjoint(("CONDA", "APPTAINER")),
        )
        notes = list[str]()

        def show() -> None:
            for note in notes:
                log.warning("%s", note)

        try:
            refuse_mistakes(findings, notify=notes.append)
        except UserError:
            show()
            raise
        if dry_run:
            atexit.register(show)  # below the table
        else:
            show()

    def message(self, text: str) -> str:
        """The message of a job, with the resources that it requests from a scheduler, before it is submitted."""
        return text + (REQUESTS + _REQUESTED if self.profile.submits else "")

    def planned_jobs(self) -> list[PlannedJob]:
        """The jobs of all studies whose results are missing, and for each sweep two other strategies."""
        runtime = self.profile.walltime_minutes() if self.profile.has_scheduler else None
        minutes = {rule: self.profile.fixed_minutes(rule) for rule in ("stage", "train")}
        return list(
            plan_jobs(self.config, self._results, self.sweep.plan, runtime_minutes=runtime, set_minutes=minutes)
        )

    def list_refusals(self, jobs: Mapping[str, Any]) -> list[Finding]:
        """What Slurm would refuse of jobs of Snakemake, by their names; nothing without a scheduler."""
        if not self.profile.submits:
            return []
        from trainyard.cli.sbatch_preview import find_refusals  # the plugin for Slurm may not be installed

        return list(find_refusals(jobs))

    # ---- outputs that are made again

    def renewal(
        self, output: str, terms: Callable[[Wildcards], str], lacks_results: Callable[[Wildcards], bool] | None = None
    ) -> Callable[[Wildcards], list[str]]:
        """An input function that names no file, but has Snakemake make `output` again if it is out of date.

        It is if it was made for other `terms`, or if it `lacks_results`. Snakemake alone would compare the parameters
        of a rule with its record in `.snakemake`, which may be lost, or newer than the results.
        """

        def renew(wildcards: Wildcards) -> list[str]:
            path = self._results / Path(output.format(**dict(wildcards.items()))).relative_to(self._declared)
            if not self.profile.is_main or not path.exists():
                return []
            if is_outdated(path, terms(wildcards)) or (lacks_results and lacks_results(wildcards)):
                self._make_again(str(path))
            return []

        return renew

    # ---- datasets

    def dataset_of(self, kind: str) -> Callable[[Wildcards], list[str]]:
        """An input function: the receipt of the dataset of a study of this kind, if it has one."""

        def receipt(wildcards: Wildcards) -> list[str]:
            dataset = getattr(self.config, kind)[wildcards.name].dataset
            return [] if dataset is None else [str(self._declared / "data" / dataset / "meta.json")]

        return receipt

    def weights_of(self, kind: str) -> Callable[[Wildcards], list[str]]:
        """An input function: the receipts of the weights of torchvision that a study of this kind starts from."""

        def receipts(wildcards: Wildcards) -> list[str]:
            named = published_weights(getattr(self.config, kind)[wildcards.name])
            return [str(self._declared / weights_receipt(*each)) for each in named]

        return receipts

    def job_marks(self, wildcards: Wildcards) -> list[str]:
        """The marks of the jobs of a sweep with several that have ended."""
        folder = self._declared / "sweeps" / wildcards.name / JOBS
        return [str(folder / DONE.format(job=job)) for job in range(self.sweep.job_count(wildcards.name))]

    def download(self, wildcards: Wildcards) -> list[str]:
        """The receipt of a dataset's download, if it needs one."""
        needed = needs_download(self.config.datasets[wildcards.name])
        return [str(self._declared / "data" / wildcards.name / "download.json")] if needed else []

    # ---- tables and plots

    def table_terms(self, kind: str) -> Callable[[Wildcards], str]:
        """A function whose result changes with everything in the config that the tables of a study depend on."""
        return lambda wildcards: table_terms(self.config, kind, wildcards.name)

    def overview_terms(self, wildcards: Wildcards) -> str:
        """Changes with everything in the config on which the overview depends, beside tables and plots."""
        return overview_terms(self.config)

    def summaries(self, wildcards: Wildcards) -> list[str]:
        """The summary of every run of every scale of a study, in the config's order."""
        folder = self._declared / "scaling" / wildcards.name
        study = self.config.scaling[wildcards.name]
        return list(map(str, chain(*study.summaries(folder).values())))

    def conclusion(self, kind: str) -> Callable[[Wildcards], Conclusion]:
        """A function that returns the conclusion of a study, for the captions of its plots."""
        return lambda wildcards: Conclusion(self.config, kind, wildcards.name, self._results)

    def plots(self) -> list[str]:
        """All plots. A dataset has plots if it contains images after staging."""
        images = [name for name, dataset in self.config.datasets.items() if has_images(dataset)]
        files = list[str]()
        for kind in PLOT_LABELS:
            for name in images if kind == "data" else self._names(kind):
                folder = self._declared / "plots" / kind / name
                files += [str(folder / f"{plot}.svg") for plot in plots_of(self.config, kind, name)]
        return files

    def plot_rules(self, kind: str) -> list[PlotRule]:
        """A rule for each set of plots that datasets or studies of a kind have, the one with all plots first."""
        every = tuple(PLOT_LABELS[kind])
        groups: dict[tuple[str, ...], list[str]] = {every: []}
        for name in self._names(kind):
            groups.setdefault(plots_of(self.config, kind, name), []).append(name)
        return [
            PlotRule(
                "_without_".join([f"plot_{kind}", *(plot for plot in every if plot not in plots)]),
                match_any(names),
                {plot: self.labels(kind)[plot] for plot in plots},
            )
            for plots, names in groups.items()
        ]

    def labels(self, kind: str) -> dict[str, str]:
        """The labels of the entries of datasets or studies of a kind in the report: the table, and the plots."""
        return ordered_labels({"table": TABLE_LABELS.get(kind, ""), **PLOT_LABELS[kind]})

    def _names(self, kind: str) -> list[str]:
        """The datasets (kind `data`) or studies of a kind."""
        return list(getattr(self.config, "datasets" if kind == "data" else kind))
