"""Where a training step's time went, what to change, and what it will gain.

This module stays empty of imports: it is also loaded inside the user's training process, whose Python may have
none of our dependencies.
"""

__version__ = "0.1.0"
