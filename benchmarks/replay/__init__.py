"""What compiling gives, as digests: shows that a redesign changed nothing, or which kernels it changed."""
