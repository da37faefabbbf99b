"""Control a sweep, also while its jobs run: cancel a trial, start one first, pause, go on, let fewer jobs run.

Jobs look for requests between trials and every few seconds. Requests stay in the results, also for later runs.
"""

import argparse
import difflib
import time
from collections.abc import Collection
from typing import Final

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History, read_state
from trainyard.planning.requests import UserRequest
from trainyard.planning.trial_space import is_placeholder
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of, format_time

SHOWN: Final = 3  # names of trials in an error


def main(arguments: argparse.Namespace) -> None:
    """Record the request, and print what follows from it."""
    config = read_config(arguments.config)
    name = arguments.sweep
    kind = arguments.request
    command_line.check_name(config, "sweeps", name)
    fold = Fold(arguments.results / "sweeps" / name)
    state = read_state(config.sweeps[name], name, arguments.results, fold=fold)
    given, jobs = (getattr(arguments, each, None) for each in ("trial", "jobs"))
    trial = "" if given is None else _find_trial(given, state)
    request = UserRequest("restore" if trial and kind == "resume" else kind, time.time(), trial=trial, jobs=jobs)
    if trial:
        _check_trial(request, state)
    text = _describe(request, state, fold.live)  # as it was before
    fold.claims.request(request)
    print(f"sweep {name}: {text}")


def _find_trial(beginning: str, state: History) -> str:
    """The name of the trial that a user gives in whole or by its beginning.

    Raises:
        UserError: there is none, or several begin like this.
    """
    names = [name for name in dict.fromkeys([*state.trials, *state.attempts]) if not is_placeholder(name)]
    matching = [beginning] if beginning in names else [name for name in names if name.startswith(beginning)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        what = f"{beginning} is the beginning of {count_of(len(matching), 'trial')}, {', '.join(matching[:SHOWN])}"
        if len(matching) > SHOWN:
            what += ", ..."
        raise UserError(f"sweep {state.name}: {what}: give more of the name")
    near = difflib.get_close_matches(beginning, names, n=SHOWN, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names[:SHOWN])}, ..."
    raise UserError(
        f"sweep {state.name} has no trial {beginning}; {hint} The column `trial` of trials.csv has all names"
    )


def _check_trial(request: UserRequest, state: History) -> None:
    """Raise a UserError if the state of the trial does not allow the request."""
    record = state.record(request.trial)
    is_cancelled = request.trial in state.requests.cancelled
    what = ""
    if request.kind == "restore":
        what = "is not cancelled: there is nothing to resume" if not is_cancelled else ""
    elif record.end:
        what = f"has ended already: {record.status}"
    elif is_cancelled:
        what = "is cancelled already" if request.kind == "cancel" else "is cancelled: `resume` it before"
    elif request.kind == "first" and record.status is TrialStatus.RUNNING:
        what = "runs already"
    if what:
        raise UserError(f"sweep {state.name}: trial {request.trial} {what}")


def _describe(request: UserRequest, state: History, live: Collection[str]) -> str:
    """What follows from a request; `live` are the sessions that may run."""
    trial = request.trial
    running = count_of(len(live), "job")
    goes_on = "the jobs that run go on with it" if live else "the same command as before goes on with it"
    match request.kind:
        case "cancel":
            return (
                f"trial {trial} is cancelled. If it runs, it ends within seconds and keeps its checkpoint; the sweep "
                f"ends without it, unless you `resume {trial}`"
            )
        case "restore":
            table = state.folder / "trials.csv"
            forced = f", with `--forcerun {table}`, since the tables are written" if table.exists() else ""
            return f"trial {trial} is to run again: {goes_on}{forced}"
        case "first":
            return f"trial {trial} starts before all others that wait"
        case "pause":
            return f"paused: no trial starts any more, and {running} will end after the trials that run there"
        case "resume":
            since = state.requests.paused_at
            return f"goes on, after a pause since {format_time(since)}: {goes_on}" if since else "was not paused"
        case _:
            more = f"; more start with `slots: {{jobs: {request.jobs}}}` in the config and the same command"
            fewer = "; the others end after the trials that run there"
            rest = fewer if len(live) > (request.jobs or 0) else more
            return f"at most {count_of(request.jobs or 0, 'job')} at the same time, of {running} that may run now{rest}"


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least one job works on a sweep; `pause` ends all")
    return number


if __name__ == "__main__":
    example = "--config config/config.yaml --sweep depth cancel 3f2a"
    parser = command_line.build_parser("Control a sweep, also while its jobs run.", example=example)
    parser.add_argument("--sweep", required=True, metavar="NAME", help="name in `sweeps` of the config")
    requests = parser.add_subparsers(dest="request", required=True, metavar="REQUEST", title="requests")
    trial_help = "its name in the column `trial` of trials.csv, or how it begins"
    for kind, text in (
        ("cancel", "end a trial, which keeps its checkpoint, and do not run it again"),
        ("first", "start a trial before all others that wait"),
    ):
        requests.add_parser(kind, help=text).add_argument("trial", metavar="TRIAL", help=trial_help)
    requests.add_parser("pause", help="start no trial any more: each job ends after the trials that run there")
    resuming = requests.add_parser("resume", help="go on after a pause; with TRIAL: run this cancelled trial again")
    resuming.add_argument("trial", nargs="?", metavar="TRIAL", help=trial_help)
    limiting = requests.add_parser(
        "jobs", help="let at most N jobs work at the same time: the others end after their trials"
    )
    limiting.add_argument("jobs", type=_positive, metavar="N", help="at least 1")
    command_line.run_program(main, parser.parse_args())
