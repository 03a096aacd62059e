"""Seeds of a series, each lived through; one that fails is named."""

import gc
from collections.abc import Callable


def live_through(live: Callable[[int], None], first: int, count: int) -> None:
    """Do it with so many seeds from the first on, with memory given back between them.

    Brokers in memory are large, 40 MB for a wheel alone, and few objects: the collector would let hundreds pile up.
    What was there before is left out of its search, which then takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    for seed in range(first, first + count):
        try:
            live(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} failed: {live.__name__}({seed}) replays it") from error
        gc.collect()
    gc.unfreeze()
