"""Code generators: loop programs to machine code (llvm) and to CUDA C (cuda), and the kernel ABI they share."""
