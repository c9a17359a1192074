"""Property tests give the same answer everywhere: no deadline on a busy machine, no new draws between runs."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
