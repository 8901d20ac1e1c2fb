"""The base of every layer: errors, dtypes, dims, targets. Imports nothing of renorm outside this folder."""
