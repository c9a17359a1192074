"""A training loop of a few milliseconds a step, with a misfortune by name: python loop.py STEPS [MISFORTUNE]."""

import os
import signal
import subprocess
import sys
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset

steps, misfortune = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
if misfortune == "class named to break reports":
    model.__class__ = type("</script><script>alert(1)</script>\u202e`|\"'\n", (torch.nn.Sequential,), {})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randint(0, 64, (4 * steps, 17))


def befall(step):
    if misfortune == "crashes in step 3" and step == 3:
        raise RuntimeError("as planted")
    if misfortune == "leaves through os._exit" and step == 5:
        os._exit(7)
    if misfortune == "closes stdout" and step == 2:
        os.close(1)
    if misfortune == "forks" and step == 2:
        child = os.fork()
        if child == 0:  # trains on, in the child, on the parent's hooks
            for batch in rows[:8].split(4):
                train(batch)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    if misfortune == "starts a Python" and step == 2:
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    if misfortune == "killed by a signal" and step == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    if misfortune == "evaluates" and step % 3 == 2:
        model.eval()
        with torch.no_grad():
            for (batch,) in DataLoader(TensorDataset(rows[:8]), batch_size=4):
                model(batch[:, :-1])
        model.train()


def interrupt(*_):
    raise KeyboardInterrupt


def begin_with_an_evaluation():
    with torch.inference_mode():
        for (batch,) in DataLoader(TensorDataset(rows[:8]), batch_size=4):
            model(batch[:, :-1])


def be_interrupted(batch):
    handle = model[1].register_forward_hook(interrupt)
    try:
        train(batch)
    except KeyboardInterrupt:
        handle.remove()


def train(batch):
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    if misfortune != "never steps":
        optimizer.step()
    optimizer.zero_grad()
    return loss


if misfortune == "exits before a step":
    sys.exit(5)
if misfortune == "trains in eval mode":
    model.eval()
if misfortune == "evaluates first":
    begin_with_an_evaluation()
if misfortune in ("no loader", "evaluates first", "is interrupted"):
    for number, batch in enumerate(rows.split(4)):
        if misfortune == "is interrupted" and number == 3:
            be_interrupted(batch)
        loss = train(batch)
        print(number, repr(loss.item()), flush=True)
else:
    for number, (batch,) in enumerate(DataLoader(TensorDataset(rows), batch_size=4)):
        befall(number)
        loss = train(batch)
        if misfortune != "closes stdout":
            print(number, repr(loss.item()), flush=True)
if misfortune != "closes stdout":
    print(threading.active_count())
