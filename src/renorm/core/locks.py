"""Every lock of renorm: who may wait for it, in which order they are taken, and what a fork makes of them.

*Order*. A lock has a rank, and what is taken inside has a higher one. As long as threads wait only while all they hold
ranks lower, no ring of them can wait for each other: in order nobody ever hangs.

*Out of order* come signal handlers, finalizers, external code and functions of ops, which run in the middle of a call
of their thread and may call anything. They take what is free. What is not, they wait for too, unless who holds it waits
in turn for this thread, or is this thread: then they get a ReentrancyError. Locks are not reentrant, since what they
guard is in the middle of a change; leaves are, and never wait for more than some statements of another thread. Where a
lock guards nothing but a call of external code (`Turn`), they go in instead of an error.

*Fork*. A child has only the thread that forked. There are two kinds of locks:

- A lock that is held while something long goes on, as compiling, guards what is replaced by a single assignment at
  the end. A fork does not wait. In the child the lock is free, and what the lost thread was doing has never begun.
- Where what it guards is in between two states meanwhile (data of several parts, a file descriptor), the lock is a
  leaf, held for a few statements: a fork waits, FORK_PATIENCE_S at most, and holds it on both sides while it happens.

A fork waits as long for imports by other threads: Python keeps a lock for each module while it is imported, which in a
child nobody gives back. Who imports may need what a fork has taken, so that is given back between two looks. One that
does not end in that time is not waited for again.

What the thread that forks holds itself it holds in the child too, and goes on with. What it has taken for the fork it
gives back natively, on both sides: the first statement of Python after a fork raises an interrupt that came meanwhile.
"""

from __future__ import annotations

import _imp
import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from importlib import import_module
from itertools import chain, repeat
from operator import call
from threading import Condition, get_ident
from typing import TYPE_CHECKING, Any, cast

from renorm.core.errors import InternalError, ReentrancyError

if not hasattr(os, "register_at_fork"):  # the first that renorm asks of a system
    raise ImportError(f"renorm runs on Linux, this system is {sys.platform}: on Windows use WSL 2")

if TYPE_CHECKING:

    class RLock:
        """The type with what stubs leave out, and threading.Condition asks for."""

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def __enter__(self) -> bool: ...
        def __exit__(self, *_: object) -> None: ...
        def _is_owned(self) -> bool: ...
        def _at_fork_reinit(self) -> None: ...

else:
    from _thread import RLock

FORK_PATIENCE_S = 30.0
_LOOK_S = 0.02  # between two looks at who waits for whom


class Rank(IntEnum):
    """In the order in which locks are taken."""

    EXTERNAL = 0  # code of others, which may call anything
    EXCHANGE = 1  # with other ranks
    MAKING = 2  # a module that is compiled when it is first needed
    LEAF = 3


class _Registered(RLock):
    """name: how an error calls what it guards."""

    __slots__ = ("name", "rank")

    def __init__(self, name: str, rank: Rank):
        self.name, self.rank = name, rank
        key = id(self)
        _living[key] = weakref.ref(self, lambda _: _living.pop(key, None))

    def take(self) -> bool:
        """Take it if nobody has it, this thread included, and return whether it did; never waits. To be given back by
        `release`, in a try right after it: an interrupt leaves it taken there, or here free."""
        if self._is_owned():
            return False
        try:
            return self.acquire(False)
        except BaseException:
            if self._is_owned():
                self.release()
            raise


class Leaf(_Registered):
    """A lock that is held for some statements that wait for nobody, so that nobody waits for it for long. A handler may
    take it again, in the middle of them. A fork waits."""

    __slots__ = ()

    def __init__(self, name: str):
        super().__init__(name, Rank.LEAF)


class Lock(_Registered):
    """A lock to be used by `with`, which an interrupt leaves either taken and released, or never taken."""

    __slots__ = ()

    def __enter__(self) -> bool:  # Python's __exit__ is native: no interrupt comes between
        if self._is_owned():
            raise self._reentered()
        if strict:
            self._check_order()
        try:
            return self.acquire(False) or self._wait()
        except BaseException:
            if self._is_owned():
                self.release()
            raise

    def _wait(self) -> bool:
        held = _held()
        if not held:
            return self.acquire()
        me, in_ring = get_ident(), 0
        outer = _waiting.get(me)  # of what a handler interrupts
        _waiting[me] = self, held
        try:
            if all(lock.rank < self.rank for lock in held):
                return self.acquire()
            while not self.acquire(timeout=_LOOK_S):
                in_ring = in_ring + 1 if _is_ring(self, held) else 0
                if in_ring == 2:  # seen twice: it was not just about to end
                    raise self._reentered()
            return True
        finally:
            if outer is None:
                del _waiting[me]
            else:
                _waiting[me] = outer

    def _reentered(self) -> Exception:
        return ReentrancyError(
            f"{self.name} is in use by a call that waits for this one",
            ["a signal handler, a finalizer or external code came in the middle of it"],
            "take a note there, and do it when that call has returned",
        )

    def _check_order(self) -> None:
        wrong = [lock for lock in _held() if lock.rank >= self.rank]
        if wrong:
            order = ", ".join(f"{lock.name} ({lock.rank.name})" for lock in wrong)
            raise InternalError(f"{self.name} ({self.rank.name}) is taken inside of {order}")


class _InVainError(Exception):
    """Whoever has the turn waits for this thread, or is this thread."""


class Turn(Lock):
    """A lock round code of others, which may call whatever waits for it: where that would be for ever, since the thread
    inside waits in turn for the one that asks, or is that one, it goes in too while the other call stands still."""

    __slots__ = ()

    def __init__(self, name: str):
        super().__init__(name, Rank.EXTERNAL)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function while no other thread computes inside."""
        try:
            with self:
                return function(*args)
        except _InVainError:
            pass
        return function(*args)

    def _reentered(self) -> Exception:
        return _InVainError()

    def _check_order(self) -> None:
        """Any order will do."""


def condition(name: str) -> Condition:
    """Return a condition on a leaf of its own, which who waits for it to come true does not hold."""
    return Condition(cast(Any, Leaf(name)))


def adopt(lock: Any) -> None:
    """Have forks wait for a lock of another library, a threading.RLock that is taken inside of all of ours."""
    _adopted.append(lock)


strict = False  # whether to refuse what is out of order even where nobody waits: for tests

_living = dict[int, weakref.ref[_Registered]]()
# that of logging, which its own hook takes: imported before this module it does so after it, and modules that make
# loggers can be waited for
_adopted = [cast(RLock, vars(logging)["_lock"])]
# by thread: what it waits for, and what it holds meanwhile
_waiting = dict[int, tuple[_Registered, list[_Registered]]]()
# by thread that forks: gives back what it has taken while somebody goes through it
_taken = dict[int, Iterable[object]]()
_given_up = set[str]()  # modules whose import did not end
_module_locks: Any = getattr(import_module("importlib._bootstrap"), "_module_locks", {})  # by name, referred to weakly


def _locks() -> list[_Registered]:
    return [lock for ref in list(_living.values()) if (lock := ref()) is not None]


def _held() -> list[_Registered]:
    """By this thread."""
    return [lock for lock in _locks() if lock._is_owned()]


def _is_ring(wanted: _Registered, held: list[_Registered]) -> bool:
    """Return whether who has `wanted` waits, for whom others wait or directly, for one of `held`."""
    waiting = list(_waiting.values())
    for _ in waiting:
        following = next((w for w, has in waiting if any(wanted is lock for lock in has)), None)
        if following is None:
            return False
        if any(following is lock for lock in held):
            return True
        wanted = following
    return False


def _imported() -> set[str]:
    """Modules that other threads import, or are about to: there is a lock as long as somebody refers to it."""
    me = get_ident()
    return {name for name, ref in list(_module_locks.items()) if (lock := ref()) is not None and lock.owner != me}


def check_imports() -> None:
    """Raise ReentrancyError where this thread is importing some of renorm, as that of a handler is which came in the
    middle of it: what needs many modules would find half of one."""
    me = get_ident()
    for name, ref in list(_module_locks.items()):
        if name.partition(".")[0] == "renorm" and (lock := ref()) is not None and lock.owner == me:
            raise ReentrancyError(
                f"{name} is being imported by a call that waits for this one",
                ["a signal handler or a finalizer came in the middle of it"],
                "take a note there, and do it when that call has returned",
            )


def _before_fork() -> None:
    until = time.monotonic() + FORK_PATIENCE_S
    while True:
        leaves = [lock for lock in _locks() if isinstance(lock, Leaf)]
        taken = [lock for lock in (*leaves, *_adopted) if not lock._is_owned()]
        released = map(RLock.release, filter(RLock._is_owned, taken))
        _taken[get_ident()] = chain(released, map(call, [_imp.release_lock]))
        for lock in taken:
            lock.acquire(timeout=max(0.0, until - time.monotonic()))
        _imp.acquire_lock()  # nobody begins an import
        imported = _imported() - _given_up
        if not imported:
            return
        if time.monotonic() > until:
            _given_up.update(imported)
            return
        _give_back()
        time.sleep(0.001)


# For each call the iterator goes through what this thread has taken; there is nothing where this module was imported
# while other hooks of the fork ran
_give_back = partial(next, map(deque[object](maxlen=0).extend, map(_taken.pop, iter(get_ident, None), repeat(()))))


def _after_fork_in_child() -> None:
    _taken.clear()
    _waiting.clear()
    for lock in (*_locks(), *_adopted):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_give_back, after_in_child=_give_back)
os.register_at_fork(after_in_child=_after_fork_in_child)
