"""Experiments on the user's own step: arithmetic, limits and what they make of each other."""
