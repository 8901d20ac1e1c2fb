"""All attacks in turns, for as long as it is given; exit status 1 where one found a fault."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from itertools import count

import click
from rich.console import Console
from tests.stress.attack import attacks
from tests.stress.batch import Outcome, attempts


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where the seeds begin.")
@click.option("--attack", "names", multiple=True, help="Only these: file, or file.function. May be repeated.")
@click.option("--once", is_flag=True, help="One attempt of each, by this seed: what a failure asks for.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each attempt.")
@click.option("--list", "lists", is_flag=True, help="Print the attacks, and what each of them tries to disprove.")
def main(minutes: float, seed: int, names: tuple[str, ...], once: bool, as_json: bool, lists: bool) -> None:
    """Attacks renorm until the time is over."""
    chosen = [a for a in attacks().values() if not names or {a.name, a.name.partition(".")[0]} & set(names)]
    if names and not chosen:
        raise click.ClickException(f"no attack is called {', '.join(names)}: --list prints them")
    if lists:
        for one in chosen:
            print(f"{one.name:40} {one.claim}")
        return
    console = Console(stderr=True)
    end, made, faults = time.monotonic() + 60 * minutes, Counter[str](), list[Outcome]()
    with console.status("starting") as status:
        for turn in count():
            for one in chosen:
                if not once and time.monotonic() > end:
                    break
                size = 1 if once else one.in_gate
                first = seed + (0 if once else turn * size)
                for outcome in attempts(one, range(first, first + size)):
                    made[one.name] += 1
                    status.update(f"{sum(made.values())} attempts, {len(faults)} faults: {one.name} {outcome.seed}")
                    if as_json:
                        print(json.dumps(vars(outcome)), flush=True)
                    if outcome.fault:
                        faults.append(outcome)
                        again = f"scripts/stress --attack {one.name} --seed {outcome.seed} --once"
                        console.print(f"\n{one.name}: {one.claim}\n{outcome.fault}\nagain: {again}", markup=False)
            if once or time.monotonic() > end:
                break
    if not as_json:
        for name, times in made.items():
            print(f"{name:40} {times:7} attempts {sum(f.attack == name for f in faults):5} faults")
    print(f"{sum(made.values())} attempts, {len(faults)} faults", file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
