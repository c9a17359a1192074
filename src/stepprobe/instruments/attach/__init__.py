"""The instrument that lives in the user's training process. Standard library only; torch is touched, never required.

``observer`` knows when a step begins and ends; ``clock`` books its nanoseconds; ``modules``, ``tensors``, ``sampler``
and the adapters tell both what happens; ``budget`` keeps the cost down; ``recorder`` writes what was seen.
"""
