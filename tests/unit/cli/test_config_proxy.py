"""Settings of the proxy that contradict each other, or leave nothing possible."""

import pytest

from latermq.config import load_config
from latermq.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["proxy.max_send_messages=0"], r"proxy\.max_send_messages must be at least 1"),
        (["proxy.max_ack_entries=0"], r"proxy\.max_ack_entries must be at least 1"),
        (["proxy.max_message_group=0"], r"proxy\.max_message_group must be at least 1"),
        (["proxy.max_look_ups=0"], r"proxy\.max_look_ups must be at least 1"),
        (["proxy.min_invisible=13h"], r"proxy\.min_invisible must be at most proxy\.max_invisible"),
        (["proxy.max_request=1KiB"], r"proxy\.max_request must be at least 64KiB"),
        (["proxy.poll_timeout=0s"], r"proxy\.poll_timeout must be above 0"),
        (["proxy.key=/key"], r"proxy\.certificate and proxy\.key must be set together"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(settings=settings, environment={})


def test_limits_of_messages_may_be_zero() -> None:
    config = load_config(settings=["proxy.max_user_properties=0", "proxy.max_keys=0"], environment={})
    assert (config.proxy.max_user_properties, config.proxy.max_keys) == (0, 0)
