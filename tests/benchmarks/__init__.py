"""The benchmarks' own bookkeeping."""
