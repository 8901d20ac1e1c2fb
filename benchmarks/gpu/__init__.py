"""Measure a GPU: correctness of every op, networks beside PyTorch, kernels beside their limits.

    python -m benchmarks.gpu --json gpu.json

Needs nothing but the checkout and PyTorch. Without a GPU (`--target llvm`) all of it runs on small extents on the CPU.
"""
