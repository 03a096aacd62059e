"""Settings of users and permissions that are refused."""

import pytest

from latermq.config import load_config
from latermq.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("access.copy_every=9ms", r"access\.copy_every must be at least 10ms"),
        ("access.max_users=0", r"access\.max_users must be at least 1"),
        ("access.max_entries=0", r"access\.max_entries must be at least 1"),
        ("access.init_user=root", r"access\.init_user must be a name, a colon and a password"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(settings=[setting], environment={})


def test_the_defaults_are_strict() -> None:
    access = load_config(environment={}).access
    assert (access.mode, access.admin_plaintext, access.call_age) == ("enforce", False, 0)
