"""Errors of file systems, told from those of programs and of sockets."""

import argparse
import errno
import os

import pytest
from trainyard.cli import command_line
from trainyard.utils.errors import StorageError, storage_error, storage_errors
from trainyard.utils.event_log import EventLog

LOST_SERVER = ["ESHUTDOWN", "ENOTCONN", "ETIMEDOUT", "ENODEV", "EAGAIN", "EREMOTEIO", "EHOSTDOWN"]
OF_DISKS = ["EIO", "ESTALE", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "EFBIG"]


def error_of(name: str, *path: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), *path)


@pytest.mark.parametrize("name", [*LOST_SERVER, *OF_DISKS])
def test_an_error_of_a_file_system_is_one_line_with_the_file_and_a_remedy(tmp_path, name):
    with (
        pytest.raises(StorageError, match=rf"^{tmp_path}: .*run the same command again") as caught,
        storage_errors(tmp_path),
    ):
        raise error_of(name)
    assert caught.value.errno == getattr(errno, name)
    assert str(storage_error(error_of(name, "/shared/x"))).startswith("/shared/x: ")


@pytest.mark.parametrize("name", LOST_SERVER)
def test_an_error_that_names_no_file_may_be_one_of_a_socket(name):
    assert storage_error(error_of(name)) is None


@pytest.mark.parametrize("name", [*LOST_SERVER, "EIO", "ESTALE"])
def test_a_program_reports_a_lost_file_system_in_one_line(tmp_path, name, caplog):
    def main(_: argparse.Namespace) -> None:
        raise error_of(name, "/shared/x")

    assert command_line._exit_code(main, argparse.Namespace(log_file=None)) == 1
    assert "bug" not in caplog.text
    assert "Traceback" not in caplog.text
    assert "/shared/x: " in caplog.text


@pytest.mark.parametrize("name", LOST_SERVER)
def test_a_journal_that_has_lost_its_server_is_reported_once(tmp_path, name, monkeypatch):
    def fail(*_: object) -> int:
        raise error_of(name)

    with EventLog.opened(tmp_path / "journal.jsonl") as events:
        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(StorageError, match=r"journal\.jsonl"):
            events.append("finished")
        events.append("finished")
        monkeypatch.undo()
