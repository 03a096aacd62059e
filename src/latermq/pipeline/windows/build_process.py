"""The roll without Spark as a process: makes an attempt of some windows of one broker, tells of each, and ends.

Of each window it prints one line: `built NUMBER NAME` or `failed NUMBER REASON`. One that fails keeps no other from
being rolled. LATERMQ_PIPELINE_TIMELINE names the folder with the timeline. A process whose parent died ends by itself
when a window takes longer than it may.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from latermq.errors import InvalidParameter, LaterMQError
from latermq.handover.window import Window
from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.bulk.bulk_job import ROOT_VARIABLE
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.local_build import roll_locally

NICE = 10  # deliveries have priority
_GRACE_S = 5.0  # the parent times out first and reports it
_LONGEST_REASON = 1_000


def roll(link: BrokerLink, root: Root, number: int) -> str:
    """Build an attempt of a window that a broker waits for, and return its name."""
    # Read the state, with its ingest offset, before the table is opened. Entries ingested in between are then read
    # twice rather than not at all.
    state = link.state()
    found = next((one for one in state.windows if one.number == number), None)
    if found is None:
        raise InvalidParameter(f"the broker waits for no window {number}", hint="It may be done with")

    def pull(start: int, until: int) -> Iterator[bytes]:
        for piece in link.pull_all(QueueRange(TIMER_TOPIC, 0, start, until)):
            yield bytes(piece)

    window = Window.from_state(state.store_id, found)
    return roll_locally(root, state, window, pull, now_ms=time.time_ns() // 1_000_000).name


def roll_each(numbers: list[int], make: Callable[[int], str], limit_s: float) -> bool:
    """Build windows one after another and print each result. Returns whether all succeeded."""
    all_well = True
    for number in numbers:
        # The signal ends the process wherever it hangs, in Python or in a library.
        signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S if limit_s else 0)
        try:
            line = f"built {number} {make(number)}"
        # A defect that one window's rows trigger must not stop the other windows.
        except Exception as error:
            all_well = False
            told = error.remark if isinstance(error, LaterMQError) else f"{type(error).__name__}: {error}"
            line = f"failed {number} {' '.join(told.split())[:_LONGEST_REASON]}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return all_well


def main() -> int:
    """Build the windows given as arguments. Returns exit code 1 if a window failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="HOST:PORT")
    parser.add_argument("--limit-s", type=float, default=0.0, help="how long one window may take; 0 is no limit")
    parser.add_argument("numbers", nargs="+", type=int, metavar="NUMBER", help="of a window")
    asked = parser.parse_args()
    root_uri = os.environ[ROOT_VARIABLE]
    os.nice(NICE)
    with BrokerLink(asked.broker) as link:
        return (
            0 if roll_each(asked.numbers, lambda number: roll(link, open_root(root_uri), number), asked.limit_s) else 1
        )


if __name__ == "__main__":
    sys.exit(main())
