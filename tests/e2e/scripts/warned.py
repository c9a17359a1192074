"""A training whose steps set off warnings, in PyTorch's C++, in its Python and in loggers, filtered in many ways."""

import logging
import sys
import threading
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(format="%(pathname)s:%(lineno)d %(message)s")
torch.manual_seed(0)
torch.set_warn_always(True)
warnings.filterwarnings("ignore", message=".*not writable.*")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
rows = torch.randn(24, 4)


class Deprecated(torch.nn.Linear):
    def zero_grad(self, *args, **kwargs):
        warnings.warn("zero_grad of this class is deprecated", DeprecationWarning, stacklevel=2)
        logging.getLogger("library").warning("as its caller should know", stacklevel=2)
        super().zero_grad(*args, **kwargs)


def converts(loss):
    float(loss)
    return [
        int(loss * 3),
        loss.item(),
        (
            loss
            * 2
        ).tolist(),
    ]  # fmt: skip


def casts(loss):
    return (loss.detach() * 1j).to(torch.float32), list(map(float, [loss, loss]))


def attends(x):
    nested = torch.nested.nested_tensor([x, x])
    return torch.nn.functional.scaled_dot_product_attention(nested, nested, nested)


def traces(loss):
    return torch.jit.trace(lambda x: x * x.sum().item(), loss.detach()[None])


def schedules():
    scheduler.step(1)


def listed(*filters):
    """Count what is told, by file and line, under some filters."""
    with warnings.catch_warnings(record=True) as caught:
        for action, module in filters:
            warnings.filterwarnings(action, module=module)
        for _ in range(2):
            loss = model(rows).sum()
            converts(loss), casts(loss), schedules()
    return [(one.category.__name__, one.filename.rpartition("/")[2], one.lineno) for one in caught]


def step(batch):
    loss = model(batch).square().mean()
    converts(loss)
    casts(loss)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    Deprecated(2, 2).zero_grad()
    optimizer.step()
    schedules()
    optimizer.zero_grad()
    return loss


def with_closure():
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        lbfgs.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        print(float(loss))
        return loss

    lbfgs.step(closure)


scheduler.step()
traces(model(rows).sum())
for number, (batch,) in enumerate(DataLoader(TensorDataset(rows), batch_size=4)):
    loss = step(batch)
    print(number, repr(loss.item()), flush=True)
    if number == 2:
        print(listed(("always", "")), listed(("default", "")), listed(("once", "")), listed(("module", "")))
        print(listed(("ignore", ""), ("always", "__main__")), listed(("always", ""), ("ignore", "__main__")))
        print(listed(("ignore", ""), ("always", "stepprobe")), listed(("ignore", ""), ("always", "torch")))
        attends(torch.randn(3, 8))
        with_closure()
        thread = threading.Thread(target=converts, args=(model(rows).sum(),))
        thread.start()
        thread.join()
    if number == 4:
        warnings.filterwarnings("error", module="__main__")
        try:
            converts(model(rows).sum())
        except UserWarning as error:
            print("raised", error)
        warnings.filterwarnings("default", module="__main__")
model.eval()
float(model(rows).sum())
print(sorted(str(key)[:90] for key in globals().get("__warningregistry__", {})), file=sys.stderr)
