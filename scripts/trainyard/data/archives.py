"""A collection of many small files: a folder, a zip or a tar, read in place, by many processes at once.

Nothing is ever unpacked to where an archive says. A compressed tar, which can only be read from its start, is
decompressed once into a plain one in the folder that `opened` is given.
"""

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from trainyard.cluster.host import file_system_type, is_network_file_system
from trainyard.data.problems import Problem
from trainyard.utils.errors import UserError
from trainyard.utils.files import atomic_write

LISTING_THREADS: Final = 16  # network file systems are slow to answer, but answer many questions at once
BOMB_RATIO: Final = 100  # images do not compress; what unpacks to more than this times its size ...
BOMB_BYTES: Final = 2**30  # ... and to more than this, was made to fill a disk
LARGEST_FILE: Final = 2**28  # bytes of one image
CHUNK: Final = 2**20
ZIP_HEADER: Final = 30  # bytes, before a member's name, extra field and data


class ArchiveError(UserError):
    """The collection cannot be read as a whole."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a collection, and where its bytes are."""

    name: str  # relative, with "/"
    size: int  # bytes
    stamp: int  # changes with the content: the time of its last change, or a checksum
    offset: int = 0  # in the archive
    packed: int = -1  # bytes in a zip; -1 elsewhere
    deflated: bool = False


@dataclass
class Collection(ABC):
    """Files below one path; what goes to another process is the path alone."""

    path: Path
    refused: list[Problem] = field(default_factory=list)  # by `files`
    folders: list[str] = field(default_factory=list)  # names of those that `files` came by

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "refused": [], "folders": []}

    @abstractmethod
    def files(self) -> list[File]:
        """All files, by name."""

    @abstractmethod
    def read(self, file: File) -> bytes:
        """The bytes of a file.

        Raises:
            OSError: they cannot be read, or are damaged.
        """


class Folder(Collection):
    """The files below a folder. Links are followed, each folder is entered once."""

    def files(self) -> list[File]:
        """All files, by name; those whose name begins with a dot are passed over."""
        if not self.path.is_dir():
            raise ArchiveError(f"{self.path}: there is no such folder")
        seen: set[tuple[int, int]] = set()
        with ThreadPoolExecutor(LISTING_THREADS if is_network_file_system(file_system_type(self.path)) else 1) as pool:
            found, waiting = list[File](), [""]
            while waiting:
                listed = list(pool.map(self._list, waiting))
                waiting = []
                for files, folders in listed:
                    found += files
                    waiting += [name for name, identity in folders if identity not in seen]
                    self.folders += [name for name, _ in folders]
                    seen.update(identity for _, identity in folders)
        return sorted(found, key=lambda file: file.name)

    def _list(self, folder: str) -> tuple[list[File], list[tuple[str, tuple[int, int]]]]:
        files, folders = [], []
        with os.scandir(self.path / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("."):
                    continue
                try:
                    state = entry.stat()
                except OSError as error:
                    self.refused.append(Problem(name, "", "unreadable", error.strerror or ""))
                    continue
                if stat.S_ISDIR(state.st_mode):
                    folders.append((name, (state.st_dev, state.st_ino)))
                elif stat.S_ISREG(state.st_mode):
                    files.append(File(name, state.st_size, state.st_mtime_ns))
        return files, folders

    def read(self, file: File) -> bytes:
        """The bytes of a file."""
        with open(f"{self.path}/{file.name}", "rb", buffering=0) as opened_file:  # a Path would take longer than this
            return opened_file.read()


class Archive(Collection):
    """What zip and tar have in common: they are read at offsets, by each process through an open file of its own."""

    @cached_property
    def _file(self) -> IO[bytes]:
        return open(self.path, "rb", buffering=0)

    def _at(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def _accepts(self, name: str, size: int) -> bool:
        """Whether a member can be used; if not, that is said."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            self.refused.append(Problem(name, "", "path leaves the archive"))
        elif size > LARGEST_FILE:
            self.refused.append(Problem(name, "", "too large", f"{size:,} bytes"))
        else:
            return bool(path.parts) and not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
        return False


class Zip(Archive):
    """The members of a zip."""

    def files(self) -> list[File]:
        """All files, by name."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise ArchiveError(f"{self.path}: cannot be read as a zip: {error}") from None
        _check_for_bomb(self.path, sum(member.file_size for member in members))
        return sorted(self._usable(members), key=lambda file: file.name)

    def _usable(self, members: list[zipfile.ZipInfo]) -> Iterator[File]:
        for member in members:
            if not self._accepts(member.filename, member.file_size):
                continue
            if member.is_dir():
                self.folders.append(member.filename.rstrip("/"))
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                self.refused.append(Problem(member.filename, "", "link in an archive"))
            elif member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                self.refused.append(Problem(member.filename, "", "encrypted or of an unknown compression"))
            else:
                deflated = member.compress_type == zipfile.ZIP_DEFLATED
                place = (member.header_offset, member.compress_size, deflated)
                yield File(member.filename, member.file_size, member.CRC, *place)

    def read(self, file: File) -> bytes:
        """The bytes of a file, held against their checksum."""
        header = self._at(file.offset, ZIP_HEADER)
        if header[:4] != b"PK\3\4" or len(header) < ZIP_HEADER:
            raise OSError("the zip is damaged here")
        name, extra = struct.unpack("<HH", header[26:30])
        content = self._at(file.offset + ZIP_HEADER + name + extra, file.packed)
        try:
            content = zlib.decompressobj(-15).decompress(content, file.size + 1) if file.deflated else content
        except zlib.error as error:
            raise OSError(f"damaged in the zip: {error}") from None
        if len(content) != file.size or zlib.crc32(content) != file.stamp:
            raise OSError("damaged in the zip: wrong checksum")
        return content


class Tar(Archive):
    """The members of a plain tar."""

    def files(self) -> list[File]:
        """All files, by name; of two of one name, the later."""
        try:
            with tarfile.open(self.path, "r:") as archive:
                return sorted({file.name: file for file in self._usable(archive)}.values(), key=lambda file: file.name)
        except (tarfile.TarError, OSError) as error:
            raise ArchiveError(f"{self.path}: cannot be read as a tar: {error}") from None

    def _usable(self, archive: tarfile.TarFile) -> Iterator[File]:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # it would keep them all
            name = member.name.removeprefix("./")
            if member.isdir():
                if self._accepts(name, 0):
                    self.folders.append(name)
            elif not member.isreg():
                self.refused.append(Problem(name, "", "link in an archive" if member.islnk() or member.issym()
                                            else "not a file"))  # fmt: skip
            elif self._accepts(name, member.size):
                yield File(name, member.size, int(member.mtime), member.offset_data)

    def read(self, file: File) -> bytes:
        """The bytes of a file."""
        content = self._at(file.offset, file.size)
        if len(content) != file.size:
            raise OSError("the tar ends within it")
        return content


_COMPRESSED: Final[dict[bytes, Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def opened(path: Path, work: Path) -> Collection:
    """What is at `path`, by its content and not by its name. A decompressed tar goes into the folder `work`.

    Raises:
        ArchiveError: it is none of these, or unpacks to a suspicious size.
    """
    if path.is_dir():
        return Folder(path)
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read ({error.strerror}); give a folder, a zip or a tar") from None
    if head[:2] == b"PK":
        return Zip(path)
    for magic, opener in _COMPRESSED.items():
        if head.startswith(magic):
            return Tar(_decompressed(path, opener, work))
    if head[257:262] == b"ustar" or (tarfile.is_tarfile(path) and head):
        return Tar(path)
    raise ArchiveError(f"{path}: is neither a folder nor a zip nor a tar (begins with {head[:8]!r})")


def _decompressed(path: Path, opener: Any, work: Path) -> Path:
    state = path.stat()
    target = work / f"{path.name}-{state.st_size}-{state.st_mtime_ns}.tar"
    if not target.exists():
        try:
            with opener(path, "rb") as packed, atomic_write(target, "wb") as plain:
                _copy(packed, plain, path)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk, not of what is read
                raise
            raise ArchiveError(f"{path}: is damaged or was cut off: {error}") from None
    return target


def _copy(packed: IO[bytes], plain: IO[bytes], path: Path) -> None:
    size = 0
    while chunk := packed.read(CHUNK):
        size += len(chunk)
        _check_for_bomb(path, size)
        plain.write(chunk)


def _check_for_bomb(path: Path, unpacked: int) -> None:
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * path.stat().st_size):
        raise ArchiveError(f"{path}: unpacks to over {unpacked:,} bytes, more than {BOMB_RATIO} times its size: an "
                           "archive bomb? Unpack it yourself if you trust it, and give the folder")  # fmt: skip
