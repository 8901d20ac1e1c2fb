"""Replay: digests of compiled programs, which show that a redesign changed nothing, or which kernels it changed."""
