"""How long an answer may be: clients close the connection over a longer frame, and until then it is held here."""

from latermq.config import Config
from latermq.errors import LaterMQError

SPARE_BYTES = 64 << 10  # for the header, and what surrounds the entries of a list


class AnswerRoom:
    """Counts what goes into one answer, before it is made."""

    def __init__(self, config: Config) -> None:
        self._left_bytes = int(config.server.max_frame) - SPARE_BYTES

    def take(self, size_bytes: int) -> None:
        """So much more goes into it."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise LaterMQError(
                "the answer would not fit one frame", hint="Request less at once, or raise server.max_frame"
            )
