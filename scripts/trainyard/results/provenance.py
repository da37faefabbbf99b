"""With which commit and versions the trials of a sweep or scales ran, in words."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from trainyard.planning.history import History
from trainyard.planning.journal import SessionStarted
from trainyard.utils.text import count_of

_COMPARED: Final = ("commit", "python", "torch", "xgboost", "lightgbm", "trainyard")
Sessions = Mapping[str, Sequence[SessionStarted | None]]  # by the name of what ran in them


def describe_origin(session: SessionStarted | None) -> str:
    """The commit and the versions with which a session ran; "" if they are unknown."""
    found = _known(session)
    return ", ".join(found[each] for each in _COMPARED if each in found)


def sessions_of_results(history: History) -> dict[str, SessionStarted | None]:
    """By trial with a result, the session in which it ran; None if the journal has none."""
    sessions = {attempt: run.info for run in history.sessions for attempt in run.attempts}
    return {result.trial: sessions.get((result.trial, result.number)) for result in history.results}


def describe_mismatch(state: History) -> str:
    """That trials ran with different commits or versions, and how many with which; "" if none did.

    With the option `code`, the commit does not matter: all trials have the same files.
    """
    sessions = {name: [session] for name, session in sessions_of_results(state).items()}
    compared = [each for each in _COMPARED if each != "commit" or not state.sweep.code_digest]
    return describe_difference("trials ran", sessions, compared, lambda names: count_of(len(names), "trial"))


def describe_difference(
    what: str, sessions: Sessions, compared: Sequence[str] = _COMPARED, count: Callable[[list[str]], str] = ", ".join
) -> str:
    """That sessions had different commits or versions, and which names had which; "" if none had."""
    recorded = {name: list(map(_known, each)) for name, each in sessions.items() if each}
    if any("commit" in each for each in chain(*recorded.values())):
        recorded = {
            name: [{"commit": "an unknown commit"} | each for each in group] for name, group in recorded.items()
        }
    values = {key: {each[key] for each in chain(*recorded.values()) if key in each} for key in compared}
    different = [key for key in compared if len(values[key]) > 1]
    groups: dict[str, list[str]] = {}
    for name, group in recorded.items():
        texts = (", ".join(each[key] for key in different if key in each) for each in group)
        groups.setdefault(" and ".join(dict.fromkeys(text or "unknown versions" for text in texts)), []).append(name)
    parts = (f"{text} ({count(names)})" for text, names in groups.items())
    return f"{what} with different versions: {', '.join(parts)}" if different else ""


def read_sessions(results: Mapping[str, Iterable[Path]]) -> Sessions:
    """The sessions that results name: summaries of scales."""
    sessions: dict[str, list[SessionStarted]] = {}
    for name, paths in results.items():
        contents = [json.loads(path.read_text()) for path in paths if path.exists()]
        entries = chain(*(each.get("sessions") or [{}] for each in contents))
        sessions[name] = [SessionStarted(code=each.get("code"), versions=each.get("versions")) for each in entries]
    return sessions


def _known(session: SessionStarted | None) -> dict[str, str]:
    """The commit and the versions of a session, as far as they are known, in words."""
    if session is None:
        return {}
    name, _, changes = (session.code or "").partition("-dirty")
    if session.code and name != session.code:
        name = f"{name} with uncommitted changes{changes.replace('-', ' ')}"
    commit = {"commit": name} if name else {}
    return commit | {name: f"{name} {version}" for name, version in (session.versions or {}).items()}
