"""Limits of one HTTP/2 connection. Every one bounds memory, or work that a peer causes without making calls.

Memory of a connection is at most `max_held_bytes` (received and not consumed) + `max_unsent_bytes` (not yet sent) +
`max_header_block_bytes` + two frames + about 2 KB for each of `max_streams` (measured
with waiting calls, their metadata and timers).

A rate allows a burst and then a number per second. A peer earns more PING, WINDOW_UPDATE, SETTINGS, empty DATA and
ignored frames by useful work: one per KiB of DATA that it receives and four per finished call. gRPC's clients measure
their bandwidth with a PING per round trip while data flows. Resets are never earned.

| exceeded | effect |
|---|---|
| `max_streams` | RST_STREAM with REFUSED_STREAM; gRPC's clients retry |
| `max_header_list_bytes` | RST_STREAM with ENHANCE_YOUR_CALM; gRPC's clients report RESOURCE_EXHAUSTED |
| `stream_window_bytes` | RST_STREAM with FLOW_CONTROL_ERROR |
| `max_held_bytes` | GOAWAY with FLOW_CONTROL_ERROR; the window shrinks as bytes are held, so correct peers wait |
| everything else | GOAWAY with ENHANCE_YOUR_CALM, and the connection ends |
"""

from dataclasses import dataclass

from latermq.errors import ConfigError
from latermq.protocol.http2.frames import DEFAULT_FRAME_BYTES, DEFAULT_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of frames at once, and then per second."""

    burst: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a connection, with their defaults."""

    max_streams: int = 4096  # concurrent calls
    max_frame_bytes: int = 16_384
    header_table_bytes: int = 0  # HPACK's dynamic table; above 0, header blocks are not cached
    max_header_list_bytes: int = 64 * 1024  # decoded, as RFC 9113 counts it
    max_header_block_bytes: int = 64 * 1024  # encoded, in HEADERS and CONTINUATION together
    max_continuations: int = 16  # CONTINUATION frames of one block
    stream_window_bytes: int = 1024 * 1024
    max_held_bytes: int = 32 * 1024 * 1024
    max_unsent_bytes: int = 32 * 1024 * 1024
    max_remembered_resets: int = 1024  # streams that we reset, whose late frames are ignored
    # A stream that its peer resets within this time counts as a rapid reset, and so does every one that we reset.
    rapid_reset_s: float = 1.0
    resets: Rate = Rate(1000, 100)
    pings: Rate = Rate(100, 10)
    settings: Rate = Rate(100, 1)
    empty_data: Rate = Rate(1000, 100)
    window_updates: Rate = Rate(10_000, 1000)
    ignored_frames: Rate = Rate(1000, 100)  # PRIORITY, GOAWAY, acknowledgments, late HEADERS and unknown types

    def __post_init__(self) -> None:
        # A peer may use the defaults until it knows our settings.
        for name, low, high in (
            ("stream_window_bytes", DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES),
            ("max_held_bytes", DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES),
            ("max_frame_bytes", DEFAULT_FRAME_BYTES, MAX_FRAME_BYTES),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"It must be {low}–{high}")


class Budget:
    """What is left of a rate on one connection."""

    __slots__ = ("_credit_used", "_left", "_rate", "_refilled_s")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._left = float(rate.burst)
        self._refilled_s = now_s
        self._credit_used = 0

    def spend(self, now_s: float, credit: int = 0) -> bool:
        """Count one frame and return whether it is within the rate. `credit` is all that the peer has earned so far."""
        self._left -= 1
        if self._left >= 0:
            return True
        # Refilled only when it is used up: most connections never get here.
        refill = (now_s - self._refilled_s) * self._rate.per_s + (credit - self._credit_used)
        self._refilled_s = now_s
        self._credit_used = credit
        self._left = min(self._left + refill, self._rate.burst)
        return self._left >= 0
