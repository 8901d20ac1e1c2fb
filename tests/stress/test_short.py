"""A short form of every attack; `scripts/stress` is the long one."""

from __future__ import annotations

import pytest
from tests.stress.attack import attacks, named
from tests.stress.batch import attempts


@pytest.mark.usefixtures("kept_code")
@pytest.mark.parametrize("name", attacks())
def test_attack(name: str) -> None:
    one = attacks()[name]
    faults = [f"seed {o.seed}: {o.fault}" for o in attempts(one, range(one.in_gate)) if o.fault]
    assert not faults, "\n\n".join(faults)


def test_every_file_of_attacks_is_there() -> None:
    pytest.importorskip("torch", reason="attacks that need PyTorch are left out: it is not installed")
    assert {"torch_layers", "verified"} <= {name.partition(".")[0] for name in attacks()}


def test_every_attack_says_what_it_tries_to_disprove() -> None:
    assert not [a.name for a in attacks().values() if not a.claim]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "AssertionError"),
        ("crashes", "SIGSEGV"),
        ("hangs", "no end in 2"),
        ("has_a_child_that_hangs", "in wait_for_ever"),
    ],
)
def test_a_fault_is_found_and_the_next_attempts_are_made(name: str, said: str) -> None:
    outcomes = list(attempts(named(f"_faulty.{name}"), range(3)))
    assert [o.seed for o in outcomes] == [0, 1, 2]
    assert [bool(o.fault) for o in outcomes] == [False, True, False]
    assert said in outcomes[1].fault
