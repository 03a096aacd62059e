"""The limits on a message's body and properties, and the errors that report them."""

from latermq.errors import IllegalMessage, NoPermission
from latermq.message.properties import MAX_PROPERTIES_BYTES
from latermq.message.record_fields import SYSFLAG_TRANSACTION_MASK

GROWTH_BYTES = 2_048  # the fixed fields of a record, and what the broker may add when it writes the record again
# Renewals and moves add properties of the broker's own.
MAX_TIMER_PROPERTIES_BYTES = MAX_PROPERTIES_BYTES - 128


class MessageLimits:
    """Raises an error for every message that is too large or has properties that cannot be stored."""

    def __init__(self, max_message: int, max_block_bytes: int) -> None:
        """`max_block_bytes` is the size of the largest record that a segment can hold."""
        self.max_body = max_message
        # A waiting message is written again later, with a longer topic or with properties that the broker adds.
        self.max_waiting = max_block_bytes - GROWTH_BYTES

    def check_body(self, size: int) -> None:
        """Refuse a body that is too long."""
        if size > self.max_body:
            raise IllegalMessage(
                f"the body has {size} bytes, the limit is {self.max_body}",
                hint="Send less, or raise broker.max_message",
            )

    def check_waiting(self, size: int) -> None:
        """Refuse a waiting message whose body and properties would not fit a segment on delivery."""
        if size > self.max_waiting:
            raise IllegalMessage(
                f"body and properties take {size} bytes: a waiting message that takes more than {self.max_waiting} "
                "does not fit a segment when it is delivered",
                hint="Send less, or raise store.segment",
            )

    def encode_properties(self, properties: str, sysflag: int) -> bytes:
        """The properties as bytes, if a message may have them."""
        if sysflag & SYSFLAG_TRANSACTION_MASK:
            raise NoPermission(
                "retries and messages of batches cannot be part of a transaction", hint="Send them as normal messages"
            )
        if "\0" in properties:
            raise IllegalMessage("a property contains a zero byte", hint="Encode binary values, for example as base64")
        try:
            encoded = properties.encode()
        except UnicodeEncodeError:
            raise IllegalMessage("a property is not valid Unicode text") from None
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise IllegalMessage(
                f"the properties take {len(encoded)} bytes, the limit is {MAX_PROPERTIES_BYTES}",
                hint="Move large values into the body",
            )
        return encoded

    def check_timer(self, properties: str, sysflag: int, left_out_bytes: int = 0) -> None:
        """Refuse a timer or a cancel that cannot be stored. `left_out_bytes` are added when it is delivered."""
        if sysflag & SYSFLAG_TRANSACTION_MASK:
            raise IllegalMessage(
                "timers in batches and cancels cannot be part of a transaction", hint="Send timers one by one"
            )
        if len(properties.encode()) + left_out_bytes > MAX_TIMER_PROPERTIES_BYTES:
            raise IllegalMessage(
                f"the properties of a timer may take {MAX_TIMER_PROPERTIES_BYTES} bytes, these take more",
                hint="Move large values into the body",
            )
