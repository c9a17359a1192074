"""Whose step: one file a framework, independent of each other."""
