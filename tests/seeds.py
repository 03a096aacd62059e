"""Seeds of a series, with memory given back between them."""

import gc
from collections.abc import Iterator


def seeds(first: int, count: int) -> Iterator[int]:
    """So many from the first on.

    Brokers in memory are large, 40 MB for a wheel alone, and few objects: the collector would let hundreds pile up.
    What was there before is left out of its search, which then takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    for seed in range(first, first + count):
        yield seed
        gc.collect()
    gc.unfreeze()
