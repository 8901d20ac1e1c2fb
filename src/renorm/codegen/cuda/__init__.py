"""CUDA C from loops (source.py), and what GPUs run from CUDA C (assemblers.py)."""
