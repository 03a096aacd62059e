"""Runs of a randomized test with a series of seeds. A failure names its seed."""

import gc
from collections.abc import Callable


def run_seeds(run: Callable[[int], None], first: int, count: int) -> None:
    """Run a test with `count` seeds from `first`, and collect garbage after each.

    Brokers in memory are large (40 MB for a wheel) but few objects, so the collector would let hundreds accumulate.
    Older objects are frozen, so that a collection takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} failed: {run.__name__}({seed}) replays it") from error
        gc.collect()
    gc.unfreeze()
