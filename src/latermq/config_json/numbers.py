"""Java's numbers: what a field of a header, of a body or of a config file may hold.

Python reads a number of any length and writes it back. The clients of the other side cannot: a topic with one of
them in its route has no route for them. So every integer of this protocol has one of these types, which
tests/unit/protocol/test_numbers.py holds.
"""

from typing import Annotated

from msgspec import Meta

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
