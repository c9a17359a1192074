"""A small training, long enough for a trace, and what may happen around it: python traced.py STEPS [HAPPENING]."""

import os
import signal
import sys
import threading

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

steps, happening = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
FIRST = 18
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randint(0, 64, (4 * steps, 17))
called = torch.compile(model, backend="eager") if happening == "compiles" else model
own = profile(activities=[ProfilerActivity.CPU]) if happening.startswith("profiles") else None
waits = profile(schedule=schedule(wait=FIRST + 2, warmup=1, active=2, repeat=1)) if happening == "waits" else None


def rows_of(profiler):
    return sum(one.count for one in profiler.key_averages() if one.key == "aten::embedding")


def befall(step):
    if happening == "profiles before" and step == 2:
        own.start()
    if happening == "profiles before" and step == 4:
        own.stop()
    if happening == "profiles inside" and step == FIRST + 2:
        own.start()
    if happening == "profiles behind" and step == FIRST + 8:
        own.start()
    if happening == "exits inside" and step == FIRST + 3:
        sys.exit(4)
    if happening == "exits while warming" and step == FIRST:
        sys.exit(4)
    if happening == "killed inside" and step == FIRST + 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if (happening, step) in (("forks inside", FIRST + 2), ("forks behind", FIRST + 8)):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            print("the child trains", repr(train(rows[:4]).item()))
            sys.exit(3)
        print("the child ended with", os.waitpid(child, 0)[1])


def train(batch):
    loss = torch.nn.functional.cross_entropy(called(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


workers = 2 if happening == "loads with workers" else 0
with waits or threading.Lock():
    for number, (batch,) in enumerate(DataLoader(TensorDataset(rows), batch_size=4, num_workers=workers)):
        befall(number)
        print(number, repr(train(batch).item()), flush=True)
        if waits:
            waits.step()
if happening in ("profiles inside", "profiles behind"):
    own.stop()
if own or waits:
    print(rows_of(own or waits))
if happening == "compiles":
    print(sorted(torch._dynamo.utils.counters["frames"].items()))
# the threads that feed workers end when they come to it
print(threading.active_count() if not workers else "", torch.rand(1).item())
