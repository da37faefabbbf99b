"""Collections of many small files (a folder, a zip or a tar), read in place by many processes at once.

Archives are not extracted, so a member's path is never written to. Only a compressed tar, which cannot be read at an
offset, is first decompressed to a plain one, in a folder that `open_collection` is given.

`zipfile` and `tarfile` list the members; their content is read with `pread` at known offsets. With `zipfile` alone,
every process would parse and hold the directory of the whole archive, which may have a million members.
"""

import io
import lzma
import os
import shutil
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar, Final, cast

from trainyard.cluster.host import file_system_type, is_network_file_system
from trainyard.data.problems import Problem
from trainyard.data.staged import DataError
from trainyard.utils.errors import StorageError
from trainyard.utils.files import atomic_write

LISTING_THREADS: Final = 16  # network file systems have a high latency, but serve many requests at once
MAX_FILE_BYTES: Final = 2**28
# What zipfile and tarfile raise for a damaged archive, depending on its bytes.
LISTING_ERRORS: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, OSError, EOFError,
                         ValueError, ArithmeticError, RuntimeError, LookupError, MemoryError, struct.error)  # fmt: skip
ZIP_HEADER_BYTES: Final = 30  # of a member's local header, before its name, extra field and data


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """A file of a collection, and where its bytes are."""

    name: str  # relative, with "/"
    size: int  # bytes
    stamp: int  # changes with the content: the modification time, or a checksum
    offset: int = 0  # in the archive
    compressed_size: int = -1  # bytes in a zip; -1 elsewhere
    is_deflated: bool = False


@dataclass
class Collection(ABC):
    """Files below one path. Only the path is pickled for other processes."""

    path: Path
    rejected: list[Problem] = field(default_factory=list)  # files that `files` leaves out
    folders: list[str] = field(default_factory=list)  # names of the folders that `files` finds

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "rejected": [], "folders": []}

    @abstractmethod
    def files(self) -> list[CollectedFile]:
        """All files, sorted by name, except hidden ones."""

    def read(self, file: CollectedFile) -> bytes:
        """The bytes of a file.

        Raises:
            OSError: it cannot be read, is damaged, or is too large.
        """
        if (size := max(file.size, file.compressed_size)) > MAX_FILE_BYTES:
            raise OSError(f"too large: {size:,} bytes")
        return self._read(file)

    @abstractmethod
    def _read(self, file: CollectedFile) -> bytes:
        """The bytes of a file of at most MAX_FILE_BYTES."""


class Folder(Collection):
    """The files below a folder. Links are followed, except to a folder that they are in."""

    def files(self) -> list[CollectedFile]:
        """All files, sorted by name, except hidden ones.

        Raises:
            DataError: it cannot be read.
        """
        if not self.path.is_dir():
            raise DataError(f"{self.path}: no such folder")
        state = self.path.stat()
        with ThreadPoolExecutor(LISTING_THREADS if is_network_file_system(file_system_type(self.path)) else 1) as pool:
            collected = list[CollectedFile]()
            pending = {"": {(state.st_dev, state.st_ino)}}  # with the folders above each
            while pending:
                listed = list(zip(pool.map(self._list, pending), pending.values(), strict=True))
                pending = {}
                for (files, folders), above in listed:
                    collected += files
                    pending |= {name: {*above, identity} for name, identity in folders if identity not in above}
                    self.folders += [name for name, _ in folders]
        return sorted(collected, key=lambda file: file.name)

    def _list(self, folder: str) -> tuple[list[CollectedFile], list[tuple[str, tuple[int, int]]]]:
        """The files in a folder, and the names and identities of the folders in it."""
        files = list[CollectedFile]()
        folders = list[tuple[str, tuple[int, int]]]()
        try:
            with os.scandir(self.path / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith("."):
                        continue
                    try:
                        state = entry.stat()
                    except OSError as error:
                        self.rejected.append(Problem(name, "", "unreadable", error.strerror or ""))
                        continue
                    if stat.S_ISDIR(state.st_mode):
                        folders.append((name, (state.st_dev, state.st_ino)))
                    elif stat.S_ISREG(state.st_mode):
                        files.append(CollectedFile(name, state.st_size, state.st_mtime_ns))
                    else:  # reading a pipe or a device might never end
                        self.rejected.append(Problem(name, "", "not a file"))
        except OSError as error:
            if not folder:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from None
            self.rejected.append(Problem(folder, "", "unreadable", error.strerror or ""))
        return files, folders

    def _read(self, file: CollectedFile) -> bytes:
        with open(f"{self.path}/{file.name}", "rb", buffering=0) as content:  # faster than with a Path
            return content.read()


class Archive(Collection):
    """A zip or tar, which each process reads at offsets through a file object of its own."""

    kind: ClassVar[str]

    def files(self) -> list[CollectedFile]:
        """All files, sorted by name, except hidden ones; of several with the same name, the last one.

        Raises:
            DataError: it cannot be listed.
        """
        try:
            by_name = {file.name: file for file in self._usable()}
        except LISTING_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"{self.path}: is not a readable {self.kind} ({reason})") from None
        return [by_name[name] for name in sorted(by_name)]

    @abstractmethod
    def _usable(self) -> Iterator[CollectedFile]:
        """The members that are used; the others are added to `rejected`."""

    @cached_property
    def _file(self) -> IO[bytes]:
        return open(self.path, "rb", buffering=0)

    def _read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, min(offset, sys.maxsize))

    def _accepts(self, name: str) -> bool:
        """Whether a member is used: it is not if it is hidden, or rejected for its path."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            self.rejected.append(Problem(name, "", "path leaves the archive"))
            return False
        return bool(path.parts) and not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


class Zip(Archive):
    """The members of a zip, verified by their checksums."""

    kind = "zip"

    def _usable(self) -> Iterator[CollectedFile]:
        with zipfile.ZipFile(self.path) as archive:
            members = archive.infolist()
        for member in members:
            if not self._accepts(member.filename):
                continue
            if member.is_dir():
                self.folders.append(member.filename.rstrip("/"))
            elif stat.S_ISLNK(member.external_attr >> 16):
                self.rejected.append(Problem(member.filename, "", "link in an archive"))
            elif member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                self.rejected.append(Problem(member.filename, "", "encrypted or of an unknown compression"))
            else:
                is_deflated = member.compress_type == zipfile.ZIP_DEFLATED
                location = (member.header_offset, member.compress_size, is_deflated)
                yield CollectedFile(member.filename, member.file_size, member.CRC, *location)

    def _read(self, file: CollectedFile) -> bytes:
        header = self._read_at(file.offset, ZIP_HEADER_BYTES)
        if header[:4] != b"PK\3\4" or len(header) < ZIP_HEADER_BYTES:
            raise OSError("damaged in the zip: no local header")
        name, extra = struct.unpack("<HH", header[26:30])
        content = self._read_at(file.offset + ZIP_HEADER_BYTES + name + extra, file.compressed_size)
        try:
            content = zlib.decompressobj(-15).decompress(content, file.size + 1) if file.is_deflated else content
        except zlib.error as error:
            raise OSError(f"damaged in the zip: {error}") from None
        if len(content) != file.size or zlib.crc32(content) != file.stamp:
            raise OSError("damaged in the zip: wrong checksum")
        return content


class Tar(Archive):
    """The members of a plain tar."""

    kind = "tar"

    def _usable(self) -> Iterator[CollectedFile]:
        with tarfile.open(self.path, "r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all members in memory
                name = member.name.removeprefix("./")
                if member.isdir():
                    if self._accepts(name):
                        self.folders.append(name)
                elif member.islnk() or member.issym():
                    self.rejected.append(Problem(name, "", "link in an archive"))
                elif member.issparse():  # its bytes in the archive are not those of the file
                    self.rejected.append(Problem(name, "", "sparse file in an archive"))
                elif not member.isreg():
                    self.rejected.append(Problem(name, "", "not a file"))
                elif self._accepts(name):
                    yield CollectedFile(name, member.size, int(member.mtime), member.offset_data)

    def _read(self, file: CollectedFile) -> bytes:
        content = self._read_at(file.offset, file.size)
        if len(content) != file.size:
            raise OSError("truncated: the tar ends within this file")
        return content


def open_collection(path: Path, work: Path) -> Collection:
    """The folder, zip or tar at `path`, recognized by its content; a compressed tar is decompressed to `work`.

    Raises:
        DataError: it is something else.
    """
    if path.is_dir():
        return Folder(path)
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is not a folder, a zip or a tar, but a device or a pipe")
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a folder, a zip or a tar") from None
    if head[:2] == b"PK":
        return Zip(path)
    try:
        with tarfile.open(path) as archive:
            is_plain = isinstance(archive.fileobj, io.BufferedReader)
    except LISTING_ERRORS:
        raise DataError(f"{path}: is not a folder, a zip or a tar (begins with {head!r})") from None
    return Tar(path if is_plain else _decompress(path, work))


def _decompress(path: Path, work: Path) -> Path:
    state = path.stat()
    target = work / f"{path.name}-{state.st_size}-{state.st_mtime_ns}.tar"
    if target.exists():
        return target
    for left in work.glob(".*.tar.*.tmp"):  # by a process that was killed
        left.unlink()
    try:
        with tarfile.open(path) as archive, atomic_write(target, "wb") as plain:
            decompressed = cast(IO[bytes], archive.fileobj)
            decompressed.seek(0)
            shutil.copyfileobj(decompressed, plain)
    except StorageError as error:
        remedy = "or extract it elsewhere and use that folder as `root`"
        raise DataError(f"{path} cannot be decompressed: {error}; {remedy}") from None
    except LISTING_ERRORS as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the content
            raise
        raise DataError(f"{path}: is damaged or truncated: {error}") from None
    return target
