"""Speed and memory of renorm beside other runtimes: see docs/benchmarks.md."""
