"""A command as a trial: heard while it runs, and ended together with all that it has started."""

import errno
import os
import queue
import re
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from trainyard.config.user_programs import (
    GRACE_SECONDS,
    Metrics,
    UserProgram,
    build_argv,
    insert_resume_option,
    make_lookup,
    metrics_digest,
)
from trainyard.programs.metrics import Lines, Reported, untold
from trainyard.programs.process import Claim, Guard
from trainyard.utils.errors import UserError

LOOK_SECONDS: Final = 0.25  # between two looks at a file of metrics
TAIL_LINES: Final = 30  # of the output, for the journal
TAIL_CHARACTERS: Final = 2000
# Programs would take these for a request to join the job's own Ray or Slurm step.
NOT_PASSED_ON: Final = re.compile(r"RAY_|PMI_|PMIX_|SLURM_(?!JOB_|JOBID|CLUSTER_NAME|SUBMIT_|TMPDIR)")


@dataclass(frozen=True)
class Call:
    """A command, and what is to be known of it while it runs."""

    spec: UserProgram
    words: Mapping[str, Any]  # what placeholders stand for, beside its arguments
    folder: Path  # its own
    cwd: str
    output: Path
    metrics: Metrics | None
    resume: str | None = None  # added to it
    timeout_seconds: float | None = None
    deadline: float = float("inf")  # Unix seconds
    grace_seconds: float = GRACE_SECONDS  # that it has to end after SIGTERM: to keep where it is
    claim: Claim | None = None  # to its folder
    told_to_end: threading.Event = field(default_factory=threading.Event)  # from outside


def run(call: Call, guard: Guard) -> Generator[dict[str, Any], bool | None, None]:
    """Run a command, which must tell some metrics if it is known how.

    Yields `{"epoch": row}` for each row of metrics, to which True may be sent to end it, and at the end `{"finished":
    ...}`, `{"pruned": ...}`, `{"stopped": ...}`, `{"unreadable": ...}` or `{"failed": ...}` with exit code and the end
    of the output. Any of these may have a `warning` for the user.
    """
    began = time.monotonic()
    reported = Reported(call.metrics, call.folder, goes_on=bool(call.words["resume_from"]))
    program = _Program(call, guard)
    end: _End | None = None
    try:
        while end is None:
            lines, running = program.listen(LOOK_SECONDS)
            for line in lines:
                reported.hear(line)
            end = _late(call, began) if running else _End("finished")
            for row in reported.look(last=end is not None):
                if (yield {"epoch": row, **reported.warning()}) and end is None:
                    end = _End("pruned")
                    break
    finally:
        code = program.end()
    tail = program.tail()
    how = {"seconds": time.monotonic() - began, "exit_code": code, "output": str(call.output), "tail": tail}
    how |= {"heard": metrics_digest(call.metrics), **reported.warning()}
    latest = reported.latest
    if end.kind == "finished":
        end = _judged(call, code, tail, untold="" if latest else reported.problem or untold(call.metrics))
    said = latest if end.kind in ("finished", "pruned") else end.why
    yield {end.kind: said, **how, **({"traceback": tail} if end.kind == "failed" else {})}


@dataclass(frozen=True)
class _End:
    kind: Literal["finished", "pruned", "stopped", "unreadable", "failed"]
    why: str = ""


def _late(call: Call, began: float) -> _End | None:
    """How the program must end now, if it must."""
    limit = call.timeout_seconds
    if limit is not None and time.monotonic() - began > limit:
        return _End("failed", f"it took longer than its timeout_minutes, {limit / 60:g}")
    if call.told_to_end.is_set():
        return _End("stopped", "it was told to end")
    return _End("stopped", "ended before the end of the walltime") if time.time() > call.deadline else None


def _judged(call: Call, code: int, tail: str, *, untold: str) -> _End:
    """Whether a program that has ended by itself has done what it should, `untold` being why no metric was found."""
    if code == 0 and call.metrics and untold:
        return _End("unreadable", untold)
    if code == 0:
        return _End("finished")
    last = (tail.strip().splitlines() or ["it said nothing"])[-1].strip()
    how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
    return _End("failed", f"{how}: {last}")


def blames_checkpoint(error: str) -> bool:
    """Whether a program that has failed in this way ended by itself: then what it has resumed from may be damaged.

    It may not if its time was up, if its worker or node died, or if a signal was sent to it: by the end of the job,
    or by the kernel when memory is out. A shell tells such a signal as exit code 128 and more.
    """
    sent = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    if found := re.match(r"exit code (\d+): ", error):
        return int(found[1]) - 128 not in sent
    killed = re.match(r"killed by (\w+): ", error)
    return killed is not None and killed[1] not in {each.name for each in sent}


class Kept(NamedTuple):
    """A checkpoint as a program left it: one that is written anew under the same name is another one."""

    name: str  # in its folder
    modified_ns: int
    size: int


def resumable(folder: Path, pattern: str | None, *, bad: Collection[Kept] = ()) -> Kept | None:
    """What to go on from: the newest checkpoint; if an attempt that did so has failed, the one before it, then none."""
    found = [(path.relative_to(folder), path.stat()) for path in folder.glob(pattern)] if pattern else []
    kept = [Kept(str(name), info.st_mtime_ns, info.st_size) for name, info in found]
    newest = sorted(kept, key=lambda each: (each.modified_ns, each.name), reverse=True)[:2]
    return next((each for each in newest if each not in bad), None)


def cannot_be_started(program: str, error: OSError) -> UserError:
    """What to say of a program that the system has refused to start.

    Of one that is in no folder of PATH, the system may tell the error of a folder that it could not look into.
    """
    nowhere = os.sep not in program and shutil.which(program, mode=os.F_OK) is None
    return UserError(f"{program} cannot be started: {os.strerror(errno.ENOENT) if nowhere else error.strerror}")


class _Program:
    """A process in a session of its own. What it says is kept in a file, and heard line by line."""

    def __init__(self, call: Call, guard: Guard) -> None:
        self._grace_seconds, self._heard = call.grace_seconds, queue.SimpleQueue[str | None]()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._output = open(call.output, "wb")  # noqa: SIM115  (closed by `end`)
        command = call.spec.command
        assert command is not None
        args = call.spec.args
        line = build_argv(insert_resume_option(command, call.resume, args), make_lookup(args, call.words))
        try:
            self._process = guard.start(
                line,
                cwd=call.cwd,
                environment=_environment(call),
                grace_seconds=call.grace_seconds,
                claim=call.claim,
                log=call.output,
            )
        except OSError as error:
            self._output.close()
            raise cannot_be_started(line[0], error) from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def listen(self, seconds: float) -> tuple[list[str], bool]:
        """What it has said, waiting at most so long for something; and whether it still runs."""
        lines, running = list[str](), True
        with suppress(queue.Empty):
            heard = self._heard.get(timeout=seconds)
            while True:
                if heard is None:
                    running = False
                else:
                    lines.append(heard)
                heard = self._heard.get_nowait()
        return lines, running

    def end(self) -> int:
        """End what still runs of it, politely first; its exit code, or minus the signal that ended it."""
        code = self._process.end(self._grace_seconds)
        self._reader.join(1.0)
        self._output.close()
        return code

    def tail(self) -> str:
        """The end of what it said."""
        return "\n".join(self._tail)[-TAIL_CHARACTERS:]

    def _read(self) -> None:
        pipe = self._process.stdout
        lines = Lines()
        while chunk := os.read(pipe.fileno(), 65536):
            with suppress(ValueError):  # closed: it ended, but something that it started goes on
                self._output.write(chunk)
                self._output.flush()
            self._say(lines.feed(chunk))
        self._say(lines.feed(b"", last=True))

    def _say(self, lines: list[str]) -> None:
        self._tail += lines
        for line in lines:
            self._heard.put(line)

    def _wait(self) -> None:
        self._process.wait()
        self._reader.join(1.0)
        self._heard.put(None)


def _environment(call: Call) -> dict[str, str]:
    """What a program sees: its own GPU, where its trial is, and nothing of this job's Ray."""
    passed = {name: value for name, value in os.environ.items() if not NOT_PASSED_ON.match(name)}
    own = {"TRAINYARD_TRIAL": str(call.words["trial"]), "TRAINYARD_TRIAL_DIR": str(call.folder)}
    return passed | own | {"PYTHONUNBUFFERED": "1"}
