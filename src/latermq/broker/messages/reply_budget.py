"""The size limit of a reply. Clients close the connection on a longer frame, and the broker buffers it until then."""

from latermq.config import Config
from latermq.errors import LaterMQError

OVERHEAD_BYTES = 64 << 10  # for the header and the syntax around the entries of a list


class ReplyBudget:
    """Counts the bytes of one reply before it is built."""

    def __init__(self, config: Config) -> None:
        self._left_bytes = int(config.server.max_frame) - OVERHEAD_BYTES

    def spend(self, size_bytes: int) -> None:
        """Add this many bytes to the reply; raises an error when it exceeds the limit."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise LaterMQError(
                "the reply does not fit in one frame", hint="Request less at once, or raise server.max_frame"
            )
