"""Counts what its handlers see, told at each line of its standard input; the line "own" signals its own group first."""

import os
import signal
import sys

COUNTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
seen = {}


def count(number, _):
    seen[number] = seen.get(number, 0) + 1


for number in COUNTED:
    signal.signal(number, count)
print(os.getpid(), flush=True)
for line in sys.stdin:
    if line == "own\n":
        os.killpg(0, signal.SIGUSR2)
    print(*(seen.get(number, 0) for number in COUNTED), flush=True)
