"""Settings of TLS that contradict each other."""

import pytest

from latermq.config import load_config
from latermq.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tls.cert=/c"], r"tls\.cert and tls\.key must be set together"),
        (["tls.require_client_cert=true"], r"tls\.require_client_cert needs tls\.client_ca"),
        (["tls.mode=enforcing", "proxy.tls=false"], r"the proxy could not accept any connection"),
        (["tls.mode=on"], r"tls\.mode must be disabled, permissive or enforcing"),
        (["tls.handshake_timeout=0s"], r"tls\.handshake_timeout must be above 0"),
        (["tls.reload_every=0s"], r"tls\.reload_every must be above 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(settings=settings, environment={})
