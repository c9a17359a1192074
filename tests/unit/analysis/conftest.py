"""Property tests here give the same answer on every machine: no deadline on a busy one, no random draws between runs."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
