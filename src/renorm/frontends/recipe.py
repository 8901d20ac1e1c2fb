"""The recipe that leads from an optimised file back to the model it was made of.

A *region* is a set of the original operators that optimising changed, and the operators that stand in their place. Two
operators are the same where they are equal down to the bits of their constants and the names of their values; all
others are in a region. Regions end at values whose names survived, since rewrites keep the name of what they replace;
so each can be undone by itself. The recipe has the original operators as their format writes them, their constants as
far as the file has no equal ones (as residuals, see frontends.residual, where it has one that predicts them), and what
each region's present operators were, so that a file which was changed since is found out.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import Any

from renorm.core.errors import InvalidModel, RenormError, raised_at
from renorm.frontends.listing import Array, Listing, Operator, in_order
from renorm.frontends.residual import Code, decode, encode, packed, unpacked

KEY = "renorm.recipe"  # of the entry in a file's metadata
_MAGIC = b"renorm recipe 1\0"
_CHECKSUM = 16  # bytes
_TRIED = 8  # constants from which another one may be predicted


@dataclass(frozen=True)
class Replacement:
    """restored: indices of original operators. gone: results and keys of the operators in their place."""

    restored: tuple[int, ...]
    gone: tuple[tuple[tuple[str, ...], str], ...]


@dataclass(frozen=True)
class Constant:
    """near: the constant of the file from which it is decoded, and its digest. type: what the format says of it."""

    code: Code | None
    near: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Recipe:
    """fragment: the original operators of all regions, as a file of the format. order: first result and name of each
    original operator. outer: the recipe that the original had itself."""

    fragment: bytes
    regions: tuple[Replacement, ...]
    constants: dict[str, Constant]
    order: tuple[tuple[str, str], ...]
    outer: bytes = b""

    def pack(self) -> bytes:
        blobs = [self.fragment, self.outer]
        head: dict[str, Any] = {
            "regions": [(r.restored, r.gone) for r in self.regions],
            "order": self.order,
            "constants": {},
        }
        for name, c in self.constants.items():
            code = c.code and (c.code.dtype, c.code.shape, c.code.way, c.code.groups, len(c.code.parts))
            head["constants"][name] = (code, c.near, c.digest)
            blobs += c.code.parts if c.code else ()
        content = b"".join(struct.pack("<Q", len(b)) + b for b in (json.dumps(head).encode(), self.fragment))
        body = b"".join(struct.pack("<Q", len(b)) + b for b in (packed(content), *blobs[1:]))
        return _MAGIC + _checksum(body) + body

    @staticmethod
    def unpack(content: bytes, label: str) -> Recipe:
        """Raise InvalidModel for what is no recipe, or a damaged one. content: nothing where a file has none."""
        if not content:
            raise InvalidModel(
                f"{label} has no recipe that leads back to the model before folding",
                do="write it by renorm optimize --reversible",
            )
        try:
            if not content.startswith(_MAGIC):
                raise ValueError(f"it begins with {content[:16]!r}")
            body = content[len(_MAGIC) + _CHECKSUM :]
            if content[len(_MAGIC) : len(_MAGIC) + _CHECKSUM] != _checksum(body):
                raise ValueError("its checksum is another one")
            first, outer, *blobs = _pieces(body)
            header, fragment = _pieces(unpacked(first))
            head, constants, at = json.loads(header), dict[str, Constant](), 0
            for name, (code, near, digest) in head["constants"].items():
                if code:
                    dtype, shape, way, groups, count = code
                    code = Code(dtype, tuple(shape), way, groups, tuple(blobs[at : at + count]))
                    at += count
                constants[name] = Constant(code, near, digest)
            regions = tuple(
                Replacement(tuple(restored), tuple((tuple(makes), key) for makes, key in gone))
                for restored, gone in head["regions"]
            )
            return Recipe(fragment, regions, constants, tuple((m, n) for m, n in head["order"]), outer)
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
            struct.error,
            zlib.error,
        ) as error:
            raise InvalidModel(
                f"{label}: its recipe is damaged", [f"{error}"], "unfold a copy that is whole"
            ) from error


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM).digest()


def _pieces(content: bytes) -> list[bytes]:
    found, at = list[bytes](), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if at + 8 + length > len(content):
            raise ValueError(f"{length} bytes at {at} of {len(content)}")
        found.append(content[at + 8 : at + 8 + length])
        at += 8 + length
    return found


@dataclass(frozen=True)
class Change:
    """Changes that optimizing made: `operators` of the original by region, and the keys of those in their place."""

    operators: list[Operator]
    regions: tuple[Replacement, ...]
    constants: dict[str, Constant]


def changes(before: Listing, after: Listing) -> Change:
    """Return how `before` differs from `after`, the file that was made of it."""
    old, new = {before.key(o): o for o in before.operators}, {after.key(o): o for o in after.operators}
    changed = [o for k, o in old.items() if k not in new]
    gone = [(o, k) for k, o in new.items() if k not in old]
    surviving = {
        n
        for n in before.producers().keys() & after.producers().keys()
        if before.extents.get(n) == after.extents.get(n) or not before.is_typed
    }
    groups = _Groups()
    inner = {n for o in (*changed, *(o for o, _ in gone)) for n in o.results}
    for o in (*changed, *(o for o, _ in gone)):
        groups.join([f"={id(o)}", *o.results, *(n for n in o.operands if n in inner and n not in surviving)])
    back, away = dict[str, list[Operator]](), dict[str, list[Operator]]()
    for o in changed:
        back.setdefault(groups.find(f"={id(o)}"), []).append(o)
    for o, _ in gone:
        away.setdefault(groups.find(f"={id(o)}"), []).append(o)
    place, keys = {o: i for i, o in enumerate(changed)}, dict(gone)
    regions, constants = list[Replacement](), _Constants(before, after)
    for at in dict.fromkeys([*back, *away]):
        olds, news = back.get(at, []), away.get(at, [])
        regions.append(Replacement(tuple(place[o] for o in olds), tuple((o.makes, keys[o]) for o in news)))
        constants.add(olds, news)
    return Change(changed, tuple(regions), constants.found)


class _Constants:
    """How the constants that original operators read are to be had again."""

    def __init__(self, before: Listing, after: Listing):
        self.before, self.after, self.found = before, after, dict[str, Constant]()
        self.equal = {after.digest(n): n for n in after.constants}

    def add(self, restored: Sequence[Operator], gone: Sequence[Operator]) -> None:
        """Those of one region."""
        likely = _Likely(gone, self.after)
        for o in restored:
            for place, name in enumerate(o.reads):
                if name in self.before.constants and name not in self.found:
                    self.found[name] = self._equal(name) or _predicted(
                        self.before.constants[name], likely.for_operand(o, place), o.groups, self.after
                    )
            for name in o.captures:
                if name in self.before.constants and name not in self.found:
                    self.found[name] = self._equal(name) or Constant(encode(self.before.constants[name]))

    def _equal(self, name: str) -> Constant | None:
        digest = self.before.digest(name)
        if name in self.after.constants and self.after.digest(name) == digest:
            return Constant(None, name, digest)
        return Constant(None, self.equal[digest], digest) if digest in self.equal else None


class _Likely:
    """Constants that those which are to be restored may have been made into. gone: the operators of a region that read
    them."""

    def __init__(self, gone: Sequence[Operator], after: Listing):
        self._gone, self._constants = gone, after.constants
        self._alike: dict[Any, list[int]] = {}  # places in `gone`, by kind and name, and by kind and results
        for i, g in enumerate(gone):
            for called in (g.name, g.makes):
                self._alike.setdefault((g.kind, called), []).append(i)
        read = dict.fromkeys(n for g in gone for n in g.reads if n in after.constants)
        self._others = [*islice(read, 2 * _TRIED)]

    def for_operand(self, o: Operator, place: int) -> list[str]:
        """For what `o` reads at that place: what the operator with its name or result reads there now comes first, and
        then all others of the region."""
        same = sorted({i for called in (o.name, o.makes) for i in self._alike.get((o.kind, called), ())})
        reads = (self._gone[i].reads for i in same)
        first = (r[place] for r in reads if place < len(r) and r[place] in self._constants)
        return [*islice(dict.fromkeys([*first, *self._others]), _TRIED)]


def _predicted(array: Array, likely: Sequence[str], groups: int, after: Listing) -> Constant:
    best: Constant | None = None
    for near in likely:
        code = encode(array, after.constants[near], groups)
        if best is None or best.code is None or code.size < best.code.size:
            best = Constant(code, near, after.digest(near)) if code.way else Constant(code)
        if code.is_small:
            break
    return best or Constant(encode(array))


@dataclass
class _Groups:
    """Names that belong together."""

    above: dict[str, str] = field(default_factory=dict[str, str])

    def find(self, name: str) -> str:
        while (up := self.above.setdefault(name, name)) != name:
            self.above[name] = self.above.get(up, up)
            name = up
        return name

    def join(self, names: Iterable[str]) -> None:
        first, *others = names
        for other in others:
            self.above[self.find(other)] = self.find(first)


# --- the way back -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Undone:
    """The result of unfolding. restored: kind and name of each original operator that is back. left: operators of the
    file that stayed because they were changed since, with a sentence each."""

    restored: tuple[tuple[str, str], ...] = ()
    left: tuple[tuple[str, str], ...] = ()


def undo(
    file: Listing, recipe: Recipe, fragment: Listing, label: str = "", *, partial: bool = True
) -> tuple[Listing, Undone, bytes]:
    """Return the listing with every region restored that is still as it was made, and the recipe that it has then: of
    the regions that are left, or the one that the original had. partial: False raises InvalidModel where one is
    left."""
    keys = {file.key(o): o for o in file.operators}
    present = _Present(file)
    left, going, coming = list[tuple[str, str]](), list[Operator](), list[Operator]()
    further = list[Replacement]()
    constants: dict[str, Array] = {}
    for region in recipe.regions:
        gone = [keys.get(key) for _, key in region.gone]
        back = [fragment.operators[i] for i in region.restored]
        reason = present.objection(region, [o for o in gone if o is not None], back)
        if reason is None:
            try:
                needed = dict.fromkeys(n for o in back for n in o.operands if n in recipe.constants)
                constants |= {n: _decoded(file, recipe.constants[n]) for n in needed if n not in constants}
            except LookupError as error:
                reason = str(error.args[0])
        if reason is not None:
            left.append((", ".join(n for makes, _ in region.gone for n in makes if n), reason))
            further.append(region)
            continue
        going += [o for o in gone if o is not None]
        coming += back
    if left and not partial:
        raise InvalidModel(
            f"{label}: {len(left)} of its folds cannot be undone",
            [f"{name}: {reason}" for name, reason in left[:8]],
            "restore the others by --partial, and leave these as they are",
        )
    leaving = set(going)
    staying = [o for o in file.operators if o not in leaving]
    rank = {name: i for i, (name, _) in enumerate(recipe.order)}
    operators = in_order([*staying, *coming], rank)
    read = {n for o in operators for n in o.operands} | {*file.outputs}
    kept = {n: a for n, a in {**file.constants, **constants}.items() if n in read}
    types = {
        **file.types,
        **{n: fragment.types[n] for o in coming for n in (*o.operands, *o.results) if n in fragment.types},
    }
    result = Listing(file.inputs, file.outputs, operators, kept, types, is_typed=file.is_typed)
    undone = Undone(tuple((o.kind, o.name or next(iter(o.results), "")) for o in coming), tuple(left))
    return result, undone, replace(recipe, regions=tuple(further)).pack() if left else recipe.outer


@contextmanager
def unfolding(label: str) -> Generator[None]:
    """Inside the block, what a file raises that promises more than it has is an error of the model."""
    try:
        yield
    except RenormError:
        raise
    except Exception as error:  # of NumPy, zlib, protobuf, or of names and numbers that lead nowhere
        raise InvalidModel(f"{label}: the file is damaged: {error}", [raised_at(error)]) from error


class _Present:
    """The names of a file: who makes and who reads each, and which of them are outputs."""

    def __init__(self, file: Listing):
        self._makers, self._readers, self._ends = file.producers(), file.readers(), frozenset(file.outputs)

    def objection(self, region: Replacement, gone: Sequence[Operator], back: Sequence[Operator]) -> str | None:
        """Return why a region cannot be restored; None where it can."""
        if len(gone) < len(region.gone):
            names = [n for makes, _ in region.gone for n in makes if n]
            missing = [n for n in names if n not in self._makers]
            if missing:
                return f"{', '.join(map(repr, missing[:3]))} is not in the file any more"
            return f"what makes {', '.join(map(repr, names[:3]))} was changed since: its operator, or its weights"
        own, made = set(gone), {n for o in back for n in o.results}
        lost = {n for o in gone for n in o.results} - made
        if any(n in self._ends or not own.issuperset(self._readers.get(n, ())) for n in lost):
            return f"{', '.join(map(repr, sorted(lost)[:3]))} is read by what was added since"
        return None


def _decoded(file: Listing, constant: Constant) -> Array:
    """LookupError with a sentence where the constant it is decoded from is another one now."""
    if constant.near and (constant.near not in file.constants or file.digest(constant.near) != constant.digest):
        raise LookupError(f"constant {constant.near!r}, from which weights are restored, was changed since")
    near = file.constants[constant.near] if constant.near else None
    if constant.code is None:
        assert near is not None
        return near
    return decode(constant.code, near)
