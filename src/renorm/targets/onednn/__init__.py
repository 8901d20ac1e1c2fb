"""oneDNN as a target: convolutions and batch norms run on its primitives, everything else on the base."""
