"""A process that works for another one: it reads requests from standard input, writes answers to standard output, and
ends with its input. `main` compiles kernels; the other side is codegen.workers.

    greeting ::= digest of the sources    once, when all is imported: whether both sides run the same code
    request  ::= pickle of (kernel, target)    the other end of the pipe is the process that started this one
    answer   ::= compiled kernel as in codegen.serialization; nothing where it cannot be compiled

Each comes after its length: 8 bytes, little-endian.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

LENGTH = struct.Struct("<Q")
Answer = Callable[[Any], bytes]


def send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """The next message; EOFError where the other side is gone."""
    head = pipe.read(LENGTH.size)
    if len(head) == LENGTH.size:
        length = LENGTH.unpack(head)[0]
        message = pipe.read(length)
        if len(message) == length:
            return message
    raise EOFError


def serve(prepare: Callable[[], tuple[str, Answer]]) -> None:
    """Greet and answer requests until the input ends. prepare: imports what answers need; returns the greeting, and
    what makes an answer of a request."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silent = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # nothing else reads from or writes to the pipes
        os.dup2(silent, standard)
    greeting, answer = prepare()
    with suppress(EOFError, OSError):  # who asked is gone
        send(answers, greeting.encode())
        while True:
            request = receive(requests)
            try:
                found = answer(pickle.loads(request))
            except Exception:  # the process that asked does it again, and gets the error where its user sees it
                found = b""
            send(answers, found)


def _compiler() -> tuple[str, Answer]:
    from renorm.codegen import llvm, serialization, structural_hash

    return structural_hash.SOURCES, lambda request: serialization.encode(llvm.compile_kernel(*request))


def main() -> None:
    serve(_compiler)
