"""What it means: plain, pure functions from evidence to numbers. No clock, no device, no torch, no I/O."""
