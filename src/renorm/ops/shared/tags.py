"""Tags by which ops tell schedules what a stage is, beside those of te."""

from renorm.topi.layout import PACKED

STATISTIC = "statistic"  # few elements, made from reductions, that many read; computed once, never inlined
REUSED = "reused"  # elements that a reduction and the result both read and that cost more than a load
KEPT = (STATISTIC, REUSED, PACKED)

# Sums of rows of tiles: they and all that reduces beside them say which of their axes runs over channels
# (attrs["channel"]).
TILE_ROWS = "tile_rows"

# The stages of attention: queries, keys and values as they are multiplied, sums of products with keys, those with scale
# and mask, their exponentials, and sums of values.
KEYS, VALUES = "keys", "values"
QUERIES, DOTS, SCORES, POWERS, MIXED = "queries", "dots", "scores", "powers", "mixed"
ATTENTION = (KEYS, VALUES, QUERIES, DOTS, SCORES, POWERS, MIXED)
