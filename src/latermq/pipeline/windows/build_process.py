"""The window build without Spark as a process: builds some windows of one broker, reports each of them, and exits.

It prints one line per window: `built NUMBER NAME` or `failed NUMBER REASON`. A failed window does not stop the others.
LATERMQ_PIPELINE_TIMELINE is the folder with the timeline. A process whose parent has died exits when a window exceeds
its time limit.
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
from latermq.pipeline.windows.local_build import MAX_ROWS, build_locally

NICE = 10  # deliveries have priority
_GRACE_S = 5.0  # the parent times out first and reports it
_LONGEST_REASON = 1_000


def build_window(link: BrokerLink, root: Root, number: int, *, max_rows: int = MAX_ROWS) -> str:
    """Build an attempt of a window that a broker waits for, and return its name."""
    # Read the state, with its ingest offset, before the table is opened. Entries ingested in between are then read
    # twice rather than not at all.
    state = link.state()
    found = next((one for one in state.windows if one.number == number), None)
    if found is None:
        raise InvalidParameter(f"the broker does not wait for window {number}", hint="It may be finished already")

    def pull(start: int, until: int) -> Iterator[bytes]:
        for piece in link.pull_all(QueueRange(TIMER_TOPIC, 0, start, until)):
            yield bytes(piece)

    window = Window.from_state(state.store_id, found)
    return build_locally(root, state, window, pull, now_ms=time.time_ns() // 1_000_000, max_rows=max_rows).name


def build_each(numbers: list[int], build: Callable[[int], str], limit_s: float) -> bool:
    """Build windows one after another and print each result. Returns whether all succeeded."""
    all_succeeded = True
    for number in numbers:
        # The signal ends the process wherever it hangs, in Python or in a library.
        signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S if limit_s else 0)
        try:
            line = f"built {number} {build(number)}"
        # A defect that one window's rows trigger must not stop the other windows.
        except Exception as error:
            all_succeeded = False
            reason = error.remark if isinstance(error, LaterMQError) else f"{type(error).__name__}: {error}"
            line = f"failed {number} {' '.join(reason.split())[:_LONGEST_REASON]}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return all_succeeded


def main() -> int:
    """Build the windows given as arguments. Returns exit code 1 if a window failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="HOST:PORT")
    parser.add_argument("--limit-s", type=float, default=0.0, help="the time limit per window; 0: no limit")
    parser.add_argument("--max-rows", type=int, default=MAX_ROWS, help="the limit of rows per window")
    parser.add_argument("numbers", nargs="+", type=int, metavar="NUMBER", help="the number of a window")
    arguments = parser.parse_args()
    root_uri = os.environ[ROOT_VARIABLE]
    os.nice(NICE)
    with BrokerLink(arguments.broker) as link:

        def build(number: int) -> str:
            return build_window(link, open_root(root_uri), number, max_rows=arguments.max_rows)

        return 0 if build_each(arguments.numbers, build, arguments.limit_s) else 1


if __name__ == "__main__":
    sys.exit(main())
