"""A training that does, in between, what few scripts do; every result is printed and must not change when observed."""

import copy
import functools
import io
import pickle
import warnings

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 32)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.head(self.norm(x + functional.scaled_dot_product_attention(x, x, x)))

    def train(self, mode=True, *, thoroughly=False):
        return super().train(mode)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randint(0, 32, (48, 9))


def loss_of(net, batch):
    return functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def hooks_of(net):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


def saves_the_module_whole():
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file.getbuffer().nbytes, hooks_of(torch.load(file, weights_only=False))


def copies_the_module():
    return hooks_of(copy.deepcopy(model)), len(copy.copy(model)._forward_hooks), len(pickle.dumps(model))


def averages_the_module():
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return average(rows[:2, :-1]).sum().item()


def copies_a_traced_module():
    traced = torch.fx.symbolic_trace(model)
    return hooks_of(copy.deepcopy(traced)), traced.code


def pickles_functions():
    functions = (functional.cross_entropy, torch.save, torch.autograd.backward, torch.nn.utils.clip_grad_norm_)
    partial = pickle.loads(pickle.dumps(functools.partial(functional.cross_entropy, ignore_index=3)))
    same = [pickle.loads(pickle.dumps(function)) is function for function in functions]
    return same, partial(torch.zeros(2, 5), torch.tensor([0, 1])).item()


def compiles_to_torchscript():
    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    scripted = torch.jit.script(model)
    criterion = torch.jit.script(torch.nn.CrossEntropyLoss())
    ones = torch.jit.script(attend)(torch.ones(1, 2, 3)).sum().item()
    return scripted(rows[:2, :-1]).sum().item(), criterion(torch.zeros(2, 3), torch.tensor([0, 1])).item(), ones


def traces_functions():
    class Loss(torch.nn.Module):
        def forward(self, x, y):
            return functional.cross_entropy(functional.scaled_dot_product_attention(x, x, x), y)

    return torch.fx.symbolic_trace(Loss()).code


def takes_gradients_by_sample():
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_by(parameters, row):
        logits = torch.func.functional_call(model, parameters, (row[None, :-1],))
        return functional.cross_entropy(logits.flatten(0, 1), row[1:])

    gradients = torch.func.vmap(torch.func.grad(loss_by), in_dims=(None, 0))(parameters, rows[:3])
    return [gradient.sum().item() for gradient in gradients.values()]


def runs_on_fake_tensors():
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return loss_of(model, mode.from_tensor(rows[:2])).shape


def traces_the_model():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, rows[:2, :-1])
    return len(list(traced.inlined_graph.nodes())), sorted({str(warning.message)[:60] for warning in caught})


def listens_to_dispatch():
    heard = []

    class Listening(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            heard.append(str(function))
            return function(*args, **(kwargs or {}))

    with Listening():
        loss_of(model, rows[:2]).backward()
    optimizer.zero_grad()
    return heard


def listens_to_functions():
    heard = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            heard.append(function.__name__)
            return function(*args, **(kwargs or {}))

    with Listening():
        loss_of(model, rows[:2])
    return heard


def has_tensors_that_listen():
    heard = []

    class Listening(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            heard.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    loss = loss_of(model, rows[:2].as_subclass(Listening))
    return heard[:], loss.item(), bool(loss > 0)


def switches_in_its_own_way():
    return model.train(True, thoroughly=True).training, model.train(mode=True).training


def begins_another_optimizer():
    another = torch.optim.SGD(model.parameters(), lr=0.0)
    loss_of(model, rows[:2])
    del another


def compiles_a_function():
    @torch.compile(backend="eager")
    def compiled(batch):
        loss = loss_of(model, batch)
        return loss * loss.item()

    values = [compiled(rows[:2]).item() for _ in range(2)]
    counters = torch._dynamo.utils.counters
    return values, dict(counters["stats"]), dict(counters["frames"])


ODDITIES = (
    saves_the_module_whole,
    copies_the_module,
    averages_the_module,
    copies_a_traced_module,
    pickles_functions,
    compiles_to_torchscript,
    traces_functions,
    takes_gradients_by_sample,
    runs_on_fake_tensors,
    traces_the_model,
    listens_to_dispatch,
    listens_to_functions,
    has_tensors_that_listen,
    switches_in_its_own_way,
    begins_another_optimizer,
    compiles_a_function,
)


def attempt(oddity):
    try:
        print(oddity.__name__, oddity())
    except Exception as error:
        print(oddity.__name__, type(error).__name__, error)


attempt(saves_the_module_whole)
for number, (batch,) in enumerate(DataLoader(TensorDataset(rows), batch_size=8)):
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(number, repr(loss.item()))
    if number in (1, 4):
        for oddity in ODDITIES:
            attempt(oddity)
print(torch.rand(1).item())
