"""python -m renorm: the command line."""

from renorm.cli import main

main(prog_name="renorm")
