"""Experiments on the user's own step, inside their process: the standard library and their torch, nothing else."""
