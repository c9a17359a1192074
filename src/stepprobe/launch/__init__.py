"""Run a user's script unchanged, under instruments.

``script`` is the parent's side, ``inject/sitecustomize.py`` and ``arm`` are what runs in the user's process.
"""
