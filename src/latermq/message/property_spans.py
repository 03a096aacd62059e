"""Locations of properties in many records, found with arrays over the whole buffer instead of record by record."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints, Octets, UInts64

NAME_END, PROPERTY_END = 1, 2
WORD_BYTES = 8
# The number of bytes that must follow the records in the buffer, because words are read at every byte.
PADDING_BYTES = 32
MAX_DIGITS = 18  # always fits into 64 bits


class Spans(NamedTuple):
    """One span of the buffer per record, empty where the record has none."""

    begins: Ints
    ends: Ints

    @property
    def present(self) -> Bools:
        found: Bools = self.ends > self.begins
        return found

    def else_(self, other: "Spans") -> "Spans":
        """These spans, with the other's wherever one is empty."""
        present = self.present
        return Spans(np.where(present, self.begins, other.begins), np.where(present, self.ends, other.ends))


class Properties:
    """All properties of the records whose property strings are the given spans. Other bytes may hold anything."""

    def __init__(self, octets: Octets, words: UInts64, regions: Spans) -> None:
        """`words` are the little-endian words at every byte of `octets`."""
        self._octets = octets
        self._words = words
        self._regions = regions
        marks = octets == PROPERTY_END
        marks[regions.begins - 1] = True  # no separator precedes the first property
        bounds = np.flatnonzero(marks) + 1
        first = np.searchsorted(bounds, regions.begins)
        counts = np.searchsorted(bounds, regions.ends) - first
        self.counts: Ints = np.where(regions.present, counts, 0)
        total = int(self.counts.sum())
        at = np.arange(total) + np.repeat(first - (np.cumsum(self.counts) - self.counts), self.counts)
        self.rows: Ints = np.repeat(np.arange(len(self.counts)), self.counts)
        self.begins: Ints = bounds[at]
        after = np.append(bounds, len(octets) + 1)[at + 1] - 1
        self.ends: Ints = np.minimum(after, regions.ends[self.rows])
        self._heads = words[self.begins]

    def find(self, name: str) -> Spans:
        """The values of one property. If a record repeats the name, the last value counts, as in a map."""
        wanted = name.encode() + bytes([NAME_END])
        hits = np.flatnonzero(_starts_with(self._heads, wanted))
        for at in range(WORD_BYTES, len(wanted), WORD_BYTES):
            rest = self._words[self.begins[hits] + at]
            hits = hits[_starts_with(rest, wanted[at:])]
        begins = self.begins[hits] + len(wanted)
        ends = self.ends[hits]
        kept = ends > begins
        rows = self.rows[hits][kept]
        found = Spans(self._regions.begins.copy(), self._regions.begins.copy())
        found.begins[rows] = begins[kept]
        found.ends[rows] = ends[kept]
        return found

    def split(self) -> tuple[Ints, Spans, Spans]:
        """The number of properties of each record, and all names and values.

        Properties that lack either are left out.
        """
        name_ends = np.append(np.flatnonzero(self._octets == NAME_END), len(self._octets))
        splits = name_ends[np.searchsorted(name_ends, self.begins)]
        whole = (splits > self.begins) & (splits + 1 < self.ends)
        counts = np.bincount(self.rows[whole], minlength=len(self.counts))
        splits = splits[whole]
        return counts, Spans(self.begins[whole], splits), Spans(splits + 1, self.ends[whole])


def _starts_with(words: UInts64, text: bytes) -> Bools:
    """Which of these little-endian words start with `text`, truncated to the size of a word."""
    part = text[:WORD_BYTES]
    value = int.from_bytes(part, "little")
    if len(part) == WORD_BYTES:
        equal: Bools = words == value
        return equal
    mask = np.uint64((1 << 8 * len(part)) - 1)
    masked: Bools = words & mask == value
    return masked


def numbers(octets: Octets, spans: Spans, most_digits: int = MAX_DIGITS) -> tuple[Ints, Bools]:
    """The decimal numbers in these spans, and which spans are numbers; the others are 0."""
    lengths = spans.ends - spans.begins
    valid = (lengths > 0) & (lengths <= most_digits)
    values = np.zeros(len(lengths), np.int64)
    for at in range(int(lengths[valid].max(initial=0))):
        inside = lengths > at
        digits = octets[np.where(inside, spans.begins + at, 0)].astype(np.int64) - 48
        valid &= ~inside | ((digits >= 0) & (digits <= 9))
        values = np.where(inside, values * 10 + digits, values)
    return np.where(valid, values, 0), valid
