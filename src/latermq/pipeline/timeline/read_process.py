"""The process that reads the timeline for the console, which keeps Arrow and delta-rs out of the console's memory.

It answers the requests of far_reads.py one after another, from its input to its output, until its input ends or its
parent dies. Each request and each answer is its length in 4 bytes and MessagePack.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from latermq.errors import LaterMQError
from latermq.pipeline.timeline.far_reads import (
    LENGTH,
    CountTimers,
    FindBusiest,
    ListCommits,
    ReadPage,
    Reply,
    Request,
)
from latermq.processes import die_with_parent

if TYPE_CHECKING:
    from latermq.pipeline.timeline.pending_counts import PendingCounts

NICE = 5  # deliveries have priority, but a person waits
_FIRST_VICTIM = "1000"  # of the kernel when memory runs out, rather than a broker
_MAX_REASON_CHARS = 1_000

_decode = msgspec.msgpack.Decoder(Request).decode
_encode = msgspec.msgpack.Encoder().encode


class TimelineReader:
    """Answers requests. What it keeps of the timeline for the next ones is bounded."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._counts: PendingCounts | None = None

    def answer_of(self, request: Request) -> Any:
        """Read the timeline. The modules that do it are loaded with the first request that needs them."""
        if isinstance(request, ReadPage):
            from latermq.pipeline.timeline.pending_page import read_far_timers

            return read_far_timers(request.root, request.store_ids, request.span, request.after, request.limit)
        if isinstance(request, CountTimers):
            counts = self._pending_counts().by_span(request.root, request.store_ids, request.spans)
            return {int(number): int(counts[number]) for number in counts.nonzero()[0]}
        if isinstance(request, FindBusiest):
            return self._pending_counts().busiest_seconds(
                request.root, request.store_ids, request.first_ms, request.last_ms, request.limit
            )
        assert isinstance(request, ListCommits)
        from latermq.pipeline.timeline.commits import last_commits

        return last_commits(request.root, request.limit)

    def _pending_counts(self) -> "PendingCounts":
        from latermq.pipeline.timeline.pending_counts import PendingCounts

        if self._counts is None:
            self._counts = PendingCounts(self._kept_bytes)
        return self._counts

    def reply_to(self, request: Request) -> Reply:
        """Answer a request. A failed one must not end the process."""
        try:
            return Reply(msgspec.Raw(_encode(self.answer_of(request))))
        except ImportError:
            return Reply(lacks_packages=True)
        except LaterMQError as error:
            return Reply(error=error.message, hint=error.hint)
        # A defect that one read triggers must not cost the others a new process.
        except Exception as error:
            return Reply(error=f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS])

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer requests until there are no more."""
        while len(head := requests.read(LENGTH.size)) == LENGTH.size:
            reply = _encode(self.reply_to(_decode(requests.read(LENGTH.unpack(head)[0]))))
            replies.write(LENGTH.pack(len(reply)) + reply)
            replies.flush()


def main() -> int:
    """Serve the parent process. The arguments are its id, and how many bytes of counts are kept."""
    parent_pid, kept_bytes = map(int, sys.argv[1:])
    die_with_parent(parent_pid)
    os.nice(NICE)
    Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    TimelineReader(kept_bytes).serve(sys.stdin.buffer, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
