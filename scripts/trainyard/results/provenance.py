"""With which commit and versions the trials of a sweep ran, in words."""

from collections import Counter
from typing import Final

from trainyard.planning.journal import SessionStarted
from trainyard.planning.sweep_state import SweepState
from trainyard.utils.text import count_of

_COMPARED: Final = ("commit", "python", "torch", "trainyard")


def describe_origin(session: SessionStarted | None) -> str:
    """The commit and the versions with which the trials of a session ran; "" if they are unknown."""
    found = _known(session)
    return ", ".join(found[each] for each in _COMPARED if each in found)


def describe_mismatch(state: SweepState) -> str:
    """That trials ran with different commits or versions, and how many with which; "" if none did.

    With the option `code`, the commit does not matter: all trials have the same files.
    """
    found = list(map(_known, state.sessions_of_results().values()))
    if any("commit" in each for each in found):
        found = [{"commit": "an unknown commit"} | each for each in found]
    compared = [each for each in _COMPARED if each != "commit" or not state.sweep.code_digest]
    different = [key for key in compared if len({each[key] for each in found if key in each}) > 1]
    names = (", ".join(each[key] for key in different if key in each) for each in found)
    counts = Counter(name or "unknown versions" for name in names)
    parts = (f"{name} ({count_of(count, 'trial')})" for name, count in counts.items())
    return f"trials ran with different versions: {', '.join(parts)}" if different else ""


def _known(session: SessionStarted | None) -> dict[str, str]:
    """The commit and the versions of a session, as far as they are known, in words."""
    if session is None:
        return {}
    commit = {"commit": session.code.replace("-dirty", " with uncommitted changes")} if session.code else {}
    return commit | {name: f"{name} {version}" for name, version in (session.versions or {}).items()}
