"""Texts of IRs are parsed by lark, and what is wrong with one is a ParseError that shows the place.

lark parses without recursion (LALR), so brackets may stand within each other as deep as memory lasts. Only modules that
parse texts import this one, so that nobody else loads lark.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from lark import Lark, Token, Tree, UnexpectedInput, UnexpectedToken

from renorm.core.errors import ParseError, RenormError

_SHOWN = 100  # characters of a line on either side of the place where it is wrong
_END = "the end of the text"


def whole_word(words: Iterable[str]) -> str:
    """Return the terminal, as a grammar has it, that is one of these words and no part of a longer one."""
    return rf"/(?:{'|'.join(map(re.escape, words))})(?![\w.?])/"


class TextReader:
    """Reads a text of one kind. A method that has the name of a rule is called with what the rule's parts became, one
    that has the name of a terminal with its token, in the order in which they end in the text. A rule without a method
    becomes the list of its parts, and an optional part that is not there None.

    grammar: in lark's notation; a word is a keyword only where that keyword may stand. phrases: what people call
    terminals (separated by spaces) where the first of them may stand.
    """

    kind: ClassVar[str]
    grammar: ClassVar[str]
    phrases: ClassVar[Mapping[str, str]]

    def __init__(self, text: str):
        self._text = text

    @classmethod
    @cache
    def _parser(cls) -> Lark:
        return Lark(cls.grammar, parser="lalr")

    def read(self) -> Any:
        """Return what the method of the rule `start` returns."""
        try:
            return self._read(self._parser().parse(self._text))
        except UnexpectedInput as error:
            raise self._syntax_error(error) from None
        except RecursionError:  # not of parsing: of what a method makes
            raise ParseError(f"{self.kind}: too many brackets within each other") from None

    def _read(self, tree: Tree[Token]) -> Any:
        waiting: list[Tree[Token] | Token | None] = [tree]
        backwards: list[Tree[Token] | Token | None] = []
        while waiting:
            part = waiting.pop()
            backwards.append(part)
            if isinstance(part, Tree):
                waiting += part.children
        made: list[Any] = []
        for part in reversed(backwards):
            if isinstance(part, Tree):
                first = len(made) - len(part.children)
                method = getattr(self, part.data, None)
                made[first:] = [method(*made[first:]) if method else made[first:]]
            else:
                method = getattr(self, part.type, None) if part is not None else None
                made.append(method(part) if method else part)
        return made[0]

    # --- what is wrong

    def _syntax_error(self, error: UnexpectedInput) -> ParseError:
        terminals, expected = error.interactive_parser.accepts(), list[str]()
        for names, phrase in self.phrases.items():
            if names.split()[0] in terminals:
                terminals = terminals.difference(names.split())
                expected.append(phrase)
        for name in sorted(terminals):
            expected.append(_END if name == "$END" else repr(self._parser().get_terminal(name).pattern.value))
        *most, last = expected
        at = error.pos_in_stream or 0
        if not isinstance(error, UnexpectedToken):
            found = repr(re.split(r"[ \t\r\n]", self._text[at : at + 10])[0])
        elif error.token.type == "$END":
            at, found = len(self._text), _END
        else:
            at += len(error.token) - len(error.token.lstrip())  # a terminal may begin with the indentation of its line
            found = repr(str(error.token.lstrip()))
        return self.unexpected(at, f"{', '.join(most)} or {last}" if most else last, found)

    def unexpected(self, place: Token | int, expected: str, found: str | None = None) -> ParseError:
        """Return the error that says what should stand at a place, and what does: by default, the token there."""
        do = f"the grammar is in {type(self).__module__}"
        return self.fail(place, f"expected {expected}, found {found or repr(str(place))}", do=do)

    def fail(self, place: Token | int, problem: str, facts: Iterable[str] = (), do: str | None = None) -> ParseError:
        """Return the error that says what is wrong at a place, by line and column, and shows it."""
        at = place if isinstance(place, int) else place.start_pos or 0
        begin, end = self._text.rfind("\n", 0, at) + 1, self._text.find("\n", at)
        left, right = max(begin, at - _SHOWN), min(end if end >= 0 else len(self._text), at + _SHOWN)
        line, column = self._text.count("\n", 0, at) + 1, at - begin + 1
        shown = [self._text[left:right], " " * (at - left) + "^"]
        return ParseError(f"{self.kind}: line {line}, column {column}: {problem}", [*shown, *facts], do)

    @contextmanager
    def located(self, place: Token) -> Generator[None]:
        """Inside it, an error in what the text means says where that stands."""
        try:
            yield
        except RenormError as error:
            raise self.fail(place, error.headline, error.facts, error.do) from error

    def integer(self, digits: Token) -> int:
        """Return the integer; ParseError where it has more digits than Python reads."""
        try:
            return int(digits)
        except ValueError as error:
            raise self.fail(digits, str(error)) from None
