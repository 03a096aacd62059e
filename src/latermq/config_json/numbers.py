"""Java's integer types, for the fields of headers, bodies and config files.

Python reads and writes numbers of any length, but clients in other languages cannot. If the route of a topic contained
such a number, they could not read the route. So every integer of this protocol has one of these types, which
tests/unit/protocol/test_numbers.py checks.
"""

from typing import Annotated

from msgspec import Meta

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
