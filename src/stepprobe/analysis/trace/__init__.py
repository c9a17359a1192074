"""From the columns of profiler traces to a device ledger per step, kernel tables and a comparison of ranks."""
