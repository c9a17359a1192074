"""Runs the user's command unchanged, with the instruments injected.

``script`` is the parent's side; ``inject/sitecustomize.py`` and ``arm`` run inside the user's process. This module
stays empty of imports: it is loaded in both.
"""
