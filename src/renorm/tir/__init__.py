"""Loop programs: grammar, text, verifier, interpreter, and one file per loop pass."""

from renorm.tir import text as text  # makes str(kernel) and str(statement) print
