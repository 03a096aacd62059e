"""The roll without Spark as a process: makes an attempt of some windows of one broker, tells of each, and ends.

Of each window it prints one line: `rolled NUMBER NAME` or `failed NUMBER REASON`. One that fails keeps no other from
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

NICE = 10  # deliveries go first
_GRACE_S = 5.0  # who started it gives up first, and says so
_LONGEST_REASON = 1_000


def roll(link: BrokerLink, root: Root, number: int) -> str:
    """Make an attempt of a window that a broker waits for; its name."""
    # The ingest offset that it tells is from before the table is opened: what comes in between is then read twice.
    state = link.state()
    found = next((one for one in state.windows if one.number == number), None)
    if found is None:
        raise InvalidParameter(f"the broker waits for no window {number}", hint="It may be done with")

    def pull(start: int, until: int) -> Iterator[bytes]:
        for piece in link.pull_all(QueueRange(TIMER_TOPIC, 0, start, until)):
            yield bytes(piece)

    window = Window.of(state.store_id, found)
    return roll_locally(root, state, window, pull, now_ms=time.time_ns() // 1_000_000).name


def roll_each(numbers: list[int], make: Callable[[int], str], limit_s: float) -> bool:
    """Roll windows one after the other and print what became of each; whether all went well."""
    all_well = True
    for number in numbers:
        # Whatever hangs, in Python or in a library, the signal ends the process.
        signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S if limit_s else 0)
        try:
            line = f"rolled {number} {make(number)}"
        # A defect that one window's rows bring to light is no reason to leave the others.
        except Exception as error:
            all_well = False
            told = error.remark if isinstance(error, LaterMQError) else f"{type(error).__name__}: {error}"
            line = f"failed {number} {' '.join(told.split())[:_LONGEST_REASON]}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return all_well


def main() -> int:
    """Exit code 1 where a window failed."""
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
