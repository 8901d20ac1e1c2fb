"""The command line: one file per verb, without logic of its own. `renorm VERB --help` says what a verb takes.

Exit codes, the same for every verb:

    0   done
    1   the numbers differ: `check` found a divergence, or a rewrite failed its verification
    2   the command line is wrong: an unknown option, target or input
    3   the model cannot be compiled: damaged, or with ops that renorm does not have
    4   an artifact cannot be read, or written
    70  a fault of renorm itself
    130 interrupted
"""

from __future__ import annotations

from renorm.cli.group import main

__all__ = ["main"]
