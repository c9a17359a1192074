"""Trainings that call the parts of their module one by one: no forward of a root is ever called.

python parts.py lightning|closure
"""

import logging
import sys
import time
import warnings

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS, PAUSE_S = 12, 0.02

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randint(0, 32, (STEPS * 4, 9))), batch_size=4)


def parts():
    return torch.nn.ModuleDict({"embedding": torch.nn.Embedding(32, 16), "head": torch.nn.Linear(16, 32)})


def loss_of(model, rows):
    time.sleep(PAUSE_S)
    logits = model["head"](model["embedding"](rows[:, :-1]))
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def closure():
    model = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for (rows,) in loader:

        def again(rows=rows):
            optimizer.zero_grad()
            loss = loss_of(model, rows)
            loss.backward()
            return loss

        print(optimizer.step(again).item())


def lightning():
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.parts = parts()

        def training_step(self, batch, batch_idx):
            return loss_of(self.parts, batch[0])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            print(outputs["loss"].item())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Module(), loader)


{"closure": closure, "lightning": lightning}[sys.argv[1]]()
