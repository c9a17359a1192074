"""Reads profiler traces (Kineto's Chrome JSON, plain, gzip or zstd) into columns."""
