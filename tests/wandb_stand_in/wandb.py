"""What a program needs of wandb: its settings from the file of a sweep, and a history in an offline run's file."""

import json
import os
import struct
from pathlib import Path

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 2**15


def varint(number):
    low = bytes([number & 127 | (128 if number > 127 else 0)])
    return low + varint(number >> 7) if number > 127 else low


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def item(key, value):
    """A value as wandb 0.31 writes it, with a tuple of names, or with one text, as earlier versions do."""
    name = field(1, key.encode()) if isinstance(key, str) else b"".join(field(2, part.encode()) for part in key)
    return field(1, name + field(16, json.dumps(value).encode()))


def history(values):
    return varint(1 << 3) + varint(300) + field(2, b"".join(item(key, value) for key, value in values.items()))


def framed(records, at):
    """Records as the parts of a log from a place on; parts do not cross the end of a block."""
    log = b""
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            room = BLOCK - (at + len(log)) % BLOCK
            if room < 7:
                log += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            log += struct.pack("<IHB", 0, len(part), kind) + part
            is_first = False
    return log


class Config(dict):
    __getattr__ = dict.__getitem__


def init(config=None, **options):
    """Start an offline run; settings of the sweep replace those of the program."""
    import yaml

    global _path, _steps
    swept = yaml.safe_load(Path(os.environ["WANDB_SWEEP_PARAM_PATH"]).read_text())
    _config.update(config or {})
    _config.update({name: each["value"] for name, each in swept.items() if name != "wandb_version"})
    runs, identity = Path(os.environ["WANDB_DIR"], "wandb"), os.environ["WANDB_RUN_ID"]
    number = len(list(runs.glob("offline-run-*")))
    _path, _steps = runs / f"offline-run-{number}-{identity}" / f"run-{identity}.wandb", 0
    _path.parent.mkdir(parents=True)
    _path.write_bytes(HEADER)


def log(values):
    """Write a row at once."""
    global _steps
    with open(_path, "ab") as file:
        file.write(framed([history({("_step",): _steps, **values})], file.tell()))
    _steps += 1


_config = config = Config()
_path, _steps = Path(), 0
