"""The step of ``forecast_job.py`` asked at two lengths in turn: at a sliding window, and one token below it.

python bench/forecast_step.py ROWS WINDOW      # prints [ms saved, low, high], CPU time of forward and backward
"""

import json
import random
import statistics
import time

import torch
from forecast_job import model_of, parse

REPEATS, WARMUP, DRAWS = 25, 3, 400


def main() -> None:
    """Measure in blocks of both lengths, in random order, and print the difference of the medians."""
    options = parse()
    window = options.window
    torch.set_num_threads(1)
    model = model_of(options)
    model.train()
    dice = random.Random(0)
    times: dict[int, list[float]] = {window: [], window - 1: []}
    for repeat in range(WARMUP + REPEATS):
        for length in dice.sample(sorted(times), 2):
            ids = torch.randint(1, options.vocabulary, (options.rows, length))
            begun = time.thread_time_ns()
            model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False).loss.backward()
            if repeat >= WARMUP:
                times[length].append((time.thread_time_ns() - begun) / 1e6)
            model.zero_grad()
    pairs = [before - after for before, after in zip(times[window], times[window - 1], strict=True)]
    drawn = sorted(statistics.median(dice.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    print(json.dumps([statistics.median(pairs), drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]]))


if __name__ == "__main__":
    main()
