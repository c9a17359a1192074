"""Reads a dataset in any of its shapes and keeps nothing of it but how long its rows are."""
