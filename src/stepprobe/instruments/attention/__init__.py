"""Watching attention: which calls a model makes, with which masks, without its weights."""
