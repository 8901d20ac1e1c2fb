"""Names that are in use, each once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Names:
    """Names in use, those set aside for who asks for exactly them, and how often each hint was numbered."""

    taken: set[str] = field(default_factory=set[str])
    reserved: set[str] = field(default_factory=set[str])
    numbered: dict[str, int] = field(default_factory=dict[str, int])

    def claim(self, name: str) -> bool:
        """Takes exactly `name`; False if it is in use."""
        if name in self.taken:
            return False
        self.taken.add(name)
        self.reserved.discard(name)
        return True

    def fresh(self, hint: str) -> str:
        """Takes `hint`, or `hint` with a number."""
        name = hint
        while not name or name in self.taken or name in self.reserved:
            self.numbered[hint] = self.numbered.get(hint, 0) + 1
            name = f"{hint}_{self.numbered[hint]}"
        self.taken.add(name)
        return name
