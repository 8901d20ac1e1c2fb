"""A process that compiles kernels for another one: `main` reads requests from standard input, writes answers to
standard output, and ends with its input. The other side is codegen.workers.

    greeting ::= digest of the sources    once, when all is imported: whether both sides run the same code
    request  ::= pickle of (kernel, target)    the other end of the pipe is the process that started this one
    answer   ::= compiled kernel as in codegen.serialization; nothing where it cannot be compiled

Each comes after its length: 8 bytes, little-endian.
"""

from __future__ import annotations

import os
import pickle
import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """The next message; EOFError where the other side is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) == _LENGTH.size:
        length = _LENGTH.unpack(head)[0]
        message = pipe.read(length)
        if len(message) == length:
            return message
    raise EOFError


def main() -> None:
    """Serves until the input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silent = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # nothing else reads from or writes to the pipes
        os.dup2(silent, standard)
    from renorm.codegen import llvm, serialization, structural_hash

    send(answers, structural_hash.SOURCES.encode())
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        try:
            answer = serialization.encode(llvm.compile_kernel(*pickle.loads(request)))
        except Exception:  # the process that asked compiles it again, and gets the error where its user sees it
            answer = b""
        send(answers, answer)
