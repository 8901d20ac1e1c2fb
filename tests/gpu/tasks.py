"""Tasks for processes of benchmarks.gpu.workers, in a module that takes no time to import."""

from __future__ import annotations

import sys
import time

from benchmarks.gpu.place import Place


def raising(place: Place) -> dict[str, str]:
    raise ValueError("no\n  really")


def ending(place: Place) -> dict[str, str]:
    sys.exit(3)


def hanging(place: Place) -> dict[str, str]:
    time.sleep(600)
    return {}


def answering(place: Place) -> dict[str, str]:
    return {"target": place.target}
