"""Templates of requests: what the calls of one method on one connection have in common.

A gRPC client sends the same fields in the same order with each call of a method. Few values differ: the timeout and the
id of the request. A template has the encoded bytes between them with their decoded fields, so a block that fits is
decoded by a few comparisons. Only a connection without a dynamic table may use them: there, equal bytes are equal
fields.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from latermq.protocol.http2.hpack.decoder import FRESH_NAMES, FieldPlace
from latermq.protocol.http2.hpack.fields import AUTHORITY, METHOD, ORDINARY, Pair
from latermq.protocol.http2.hpack.huffman import decode_huffman, is_plain_huffman
from latermq.protocol.http2.requests import Request

_MAX_TEMPLATES = 4  # about as many methods as a client uses most of the time
# Each of the first blocks of a connection that fits no template becomes one. Then one in many does: a client whose
# blocks never repeat gains nothing, and one that sends the time of day gets a new template soon enough.
_EAGER_MISSES = 100
_LEARN_EVERY_MISSES = 64
_new_tuple: Callable[[type[Request], tuple[object, ...]], Request] = tuple.__new__  # a third of the time of Request()
# Nothing here reads the id of a request, so it is checked, but decoded only on demand: Huffman decoding takes 2 µs, and
# the check half of that.
UNREAD_NAMES = {b"x-mq-request-id"}
_is_plain = re.compile(rb"[!-~]+").fullmatch


class Step(NamedTuple):
    """A field whose value differs, and the fields after it that do not."""

    name_start: bytes  # the encoded field up to its value
    name: bytes
    is_read: bool  # the value is decoded at once, not only checked
    run: bytes
    run_pairs: list[Pair]


class Template:
    """One template. `ordinary` are the fields of its prefix."""

    __slots__ = ("_ordinary", "_pseudo", "_steps", "_unread_at", "fresh_at", "memo", "prefix")

    def __init__(self, prefix: bytes, ordinary: list[Pair], steps: list[Step], request: Request) -> None:
        self.prefix = prefix
        self._ordinary = ordinary
        self._steps = steps
        self._pseudo = (request.method, request.path, request.scheme, request.authority)
        self.fresh_at: list[int] = []  # the positions in `Request.fields` of values that differ
        self._unread_at: list[int] = []  # of those that are still encoded
        position = len(ordinary)
        for step in steps:
            self.fresh_at.append(position)
            if not step.is_read:
                self._unread_at.append(position)
            position += 1 + len(step.run_pairs)
        self.memo: object | None = None  # for the user: what follows from the fields that do not differ

    def request(self, block: bytes) -> Request | None:
        """Return the request with this block, which has the template's prefix, or None if the rest does not fit."""
        fields = self._ordinary.copy()
        at = len(self.prefix)
        end = len(block)
        for name_start, name, is_read, run, run_pairs in self._steps:
            value_at = at + len(name_start) + 1
            if value_at > end or not block.startswith(name_start, at):
                return None
            size = block[value_at - 1]
            stop = value_at + (size & 0x7F)
            if size & 0x7F == 0x7F or stop > end:
                return None  # the length takes more than one byte, or the block is truncated
            value = block[value_at:stop]
            if is_read:
                if size >= 0x80:
                    value = decode_huffman(value)
                if not value.isalnum() and not _is_plain(value):
                    return None
            elif (is_plain_huffman(value) if size >= 0x80 else _is_plain(value)) and value:
                value = block[value_at - 1 : stop]
            else:
                return None  # the decoder says what is wrong with it, if anything is
            if not block.startswith(run, stop):
                return None
            fields.append((name, value))
            fields += run_pairs
            at = stop + len(run)
        return _new_tuple(Request, (*self._pseudo, fields, None, self)) if at == end else None

    def read(self, fields: list[Pair]) -> list[Pair]:
        """Return the fields of a request of this template with all values decoded."""
        read = fields.copy()
        for at in self._unread_at:
            name, encoded = fields[at]
            read[at] = (name, decode_huffman(encoded[1:]) if encoded[0] >= 0x80 else encoded[1:])
        return read


class Templates:
    """The templates of one connection, the newest first."""

    __slots__ = ("_found", "_misses")

    def __init__(self) -> None:
        self._found: list[Template] = []
        self._misses = 0

    def request(self, block: bytes) -> Request | None:
        """Return the request with this block if it fits a template."""
        for template in self._found:
            if block.startswith(template.prefix):
                return template.request(block)
        return None

    def miss(self) -> bool:
        """Count a block that does not fit, and return whether to learn it."""
        self._misses += 1
        return self._misses <= _EAGER_MISSES or self._misses % _LEARN_EVERY_MISSES == 0

    def learn(self, block: bytes, places: list[FieldPlace], request: Request) -> None:
        """Make a template of a valid request, unless its block has no places or a content-length."""
        if not places:
            return
        ordinary: list[Pair] = []
        steps: list[Step] = []
        prefix_end = len(block)
        run = ordinary  # the pairs since the last fresh field
        run_start = 0
        fresh = None
        pairs = iter(request.fields)  # equal to those of the places, but mostly shared with other connections
        for field, start, value_at in places:
            kind = field[1]
            if METHOD <= kind <= AUTHORITY:
                continue
            if kind != ORDINARY:
                return  # content-length
            if (pair := next(pairs))[0] in FRESH_NAMES and value_at:
                if fresh is None:
                    prefix_end = start
                else:
                    steps.append(Step(*fresh, block[run_start:start], run))
                fresh = (block[start:value_at], pair[0], pair[0] not in UNREAD_NAMES)
                run_start = value_at + 1 + (block[value_at] & 0x7F)
                run = []
            else:
                run.append(pair)
        if fresh is not None:
            steps.append(Step(*fresh, block[run_start:], run))
        others = [other for other in self._found if other.prefix != block[:prefix_end]]
        template = Template(block[:prefix_end], ordinary, steps, request)
        self._found = [template, *others[: _MAX_TEMPLATES - 1]]
