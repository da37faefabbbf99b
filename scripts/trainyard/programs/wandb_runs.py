"""Runs of Weights & Biases: the variables by which one takes the settings of a trial, and the history that it writes.

The formats are those of `wandb_agent.py` and `wandb_internal.proto` in wandb 0.31, and of LevelDB's logs. They are
decoded here, because the package `wandb` is in the environment of the program, not in Trainyard's.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.config.placeholders import TRIAL_PLACEHOLDERS, dotted_items
from trainyard.utils.files import atomic_write

WANDB_SETTINGS: Final = "wandb-settings.yaml"  # the file of a trial, in its folder
_MAX_ID: Final = 64  # characters of the ID of a run
MAGIC: Final = b":W&B"  # at the beginning of a run's file
_HEADER: Final = 7  # bytes, of the file and of each part of a record
_BLOCK: Final = 2**15  # bytes, at whose end no part begins that has no room for its header
# Kinds of parts; 0 is not written yet.
_WHOLE = 1
_FIRST = 2
_LAST = 4
# Numbers of fields: of a record, of a history, and of its items.
_HISTORY = 2
_ITEM = 1
_KEY = 1
_NESTED_KEY = 2
_VALUE = 16

# What the user may set otherwise. wandb 0.31 flushes each second, earlier ones once a block is full.
_DEFAULTS: Final = {
    "WANDB_MODE": "offline",
    "WANDB_RESUME": "allow",
    "WANDB_SILENT": "true",
    "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": "1",
}
REPLACED: Final = {"WANDB_DIR", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"}  # even if the user has set them


def wandb_environment(
    environment: Mapping[str, str], settings: Mapping[str, Any], folder: Path, *, run: str, group: str
) -> dict[str, str]:
    """The environment of a program whose run of W&B has these settings, and is written to a folder.

    The settings are in a file, as W&B's agent writes it. The run can be uploaded later by `wandb sync`.
    """
    file = folder.absolute() / WANDB_SETTINGS
    content = dict[str, Any]({"wandb_version": 1})
    for key, value in settings.items():
        taken = key.removesuffix("_")  # `dataset_` is the key for a setting named `dataset`
        content[taken if taken in TRIAL_PLACEHOLDERS else key] = {"value": value}
    with atomic_write(file) as text:
        yaml.safe_dump(content, text)
    own = {"WANDB_DIR": str(file.parent), "WANDB_RUN_ID": run, "WANDB_SWEEP_PARAM_PATH": str(file)}
    return {**_DEFAULTS, "WANDB_RUN_GROUP": group, **environment, **own}


def run_id(sweep: str, folder: Path) -> str:
    """The ID of the run of a trial with this folder. `wandb sync` joins runs with the same: its attempts, no others."""
    return f"{sweep}-{folder.name.partition('~')[0]}"[-_MAX_ID:]


def read_history(content: bytes, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The rows in a part of a run's file that begins at an offset, and the size of the whole records in it.

    Raises:
        IndexError, ValueError, struct.error: a record is damaged.
    """
    rows = list[dict[str, Any]]()
    at = 0 if offset else _HEADER
    size = 0
    record = b""
    while at + _HEADER <= len(content):
        room = _BLOCK - (offset + at) % _BLOCK
        if room < _HEADER:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        part = content[at + _HEADER : at + _HEADER + length]
        if not kind or len(part) < length:
            break
        at += _HEADER + length
        record = part if kind in (_WHOLE, _FIRST) else record + part
        if kind in (_WHOLE, _LAST):
            rows += [_read_row(history) for number, history in _fields(record) if number == _HISTORY]
            size = at
    return rows, size


def _read_row(history: bytes) -> dict[str, Any]:
    """The values of a history by dotted name, without W&B's own, and without media such as histograms."""
    row = dict[str, Any]()
    for _, item in (field for field in _fields(history) if field[0] == _ITEM):
        fields = [(number, text.decode()) for number, text in _fields(item)]
        name = ".".join(text for number, text in fields if number in (_KEY, _NESTED_KEY))
        row |= dotted_items({name: json.loads(dict(fields)[_VALUE])})
    media = tuple(name.removesuffix("_type") for name in row if name.endswith("._type"))
    return {
        name: value
        for name, value in row.items()
        if not name.startswith(media) and (name == "_step" or not name.startswith("_"))
    }


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message of protobuf that are texts or messages, each with its number."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size = {1: 8, 5: 4}.get(tag % 8, 0)
        if tag % 8 in (0, 2):
            number, at = _varint(message, at)
            size = number if tag % 8 == 2 else 0
        if tag % 8 == 2:
            yield tag // 8, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    number = shift = 0
    while True:
        number |= (message[at] & 127) << shift
        at = at + 1
        shift = shift + 7
        if message[at - 1] < 128:
            return number, at
