"""What a step pays for the shape before it: the same shapes mixed, mixed with a lead-in of their own shape, and alone.

    python bench/lead_in.py [repeats]

Prints the median thread CPU time (ms) and the page faults of forward, loss and backward of a tiny model. CPU alone.
"""

import random
import resource
import statistics
import sys
import time


def main(repeats: int) -> None:
    """Measure and print."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=4096,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).train()

    def step(shape):
        ids = torch.randint(0, 512, shape)
        model.zero_grad(set_to_none=True)
        faults, begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time_ns()
        model(input_ids=ids, labels=ids).loss.backward()
        took = time.thread_time_ns() - begun
        return took / 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults

    shapes, order = [(1, 64), (32, 64), (1, 512), (6, 184)], random.Random(0)
    found = {name: {shape: [] for shape in shapes} for name in ("mixed", "led in", "alone")}
    for shape in shapes:
        step(shape)
    for _ in range(repeats):
        block = order.sample(shapes, len(shapes))
        for shape in block:
            found["mixed"][shape].append(step(shape))
        for shape in block:
            step(shape)
            found["led in"][shape].append(step(shape))
    for shape in shapes:
        found["alone"][shape] = [step(shape) for _ in range(repeats)]
    for name, taken in found.items():
        for shape, all_of in taken.items():
            cpu, faults = (statistics.median(values) for values in zip(*all_of, strict=True))
            print(f"{name:7s} {shape!s:9s} {cpu:7.2f} ms {faults:6.0f} page faults")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
