"""What every layer speaks: errors, dtypes, dims, targets. Imports nothing of renorm outside this folder."""
