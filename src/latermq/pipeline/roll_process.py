"""The roll without Spark as a process: makes an attempt of some windows of one broker, prints their names and ends."""

import argparse
import os
import sys
import time
from collections.abc import Iterator

from latermq.errors import InvalidParameter, LaterMQError
from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.link import BrokerLink, QueueRange
from latermq.pipeline.local_roll import roll_locally
from latermq.pipeline.root import Root, open_root
from latermq.pipeline.window import Window

NICE = 10  # deliveries go first


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


def main() -> int:
    """Exit code 1 and one line on standard error where it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="HOST:PORT")
    parser.add_argument("--root", required=True, help="the folder with the timeline and its windows")
    parser.add_argument("numbers", nargs="+", type=int, metavar="NUMBER", help="of a window")
    asked = parser.parse_args()
    os.nice(NICE)
    try:
        root = open_root(asked.root)
        with BrokerLink(asked.broker) as link:
            for number in asked.numbers:
                sys.stdout.write(roll(link, root, number) + "\n")
    except LaterMQError as error:
        sys.stderr.write(f"{error.message}. {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
