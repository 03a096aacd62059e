"""Credentials in URIs never appear in errors, settings or log lines; all other text does."""

import io
import logging

import pytest
import structlog

from latermq.broker.admin.runtime_info import Identity, settings_text
from latermq.config import load_config
from latermq.errors import MAX_MESSAGE_CHARS, StoreError
from latermq.redaction import redacted
from latermq.server.logs import set_up_logs
from tests.support.log_stream import stream as stream  # a fixture

SECRETS = ("AKIAKEY", "hush", "hu/sh", "h@sh", "t0ken", "c2ln")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://AKIAKEY:hush@bucket/timers", "s3://***@bucket/timers"),
        ("cannot parse 's3a://AKIAKEY:hu/sh@bucket/timers'", "cannot parse 's3a://***@bucket/timers'"),
        ("s3://AKIAKEY:h@sh@bucket", "s3://***@bucket"),
        ("cannot parse 's3://AKIAKEY:h'ush@bucket'", "cannot parse 's3://***@bucket'"),
        ("https://host/t?sv=2'&sig=c2ln no", "https://host/t?*** no"),
        ("s3://AKIAKEY:hush?t0ken@bucket/t?sig=c2ln", "s3://***@bucket/t?***"),
        ("s3://AKIAKEY:hush@b/t?region=x&session_token=t0ken: no", "s3://***@b/t?*** no"),
        ("abfss://box@account.dfs.core.windows.net/t?sv=2&sig=c2ln", "abfss://box@account.dfs.core.windows.net/t?***"),
        ("file:///x,s3://AKIAKEY:hush@b", "file://***@b"),
        ("abfs://box:hush@account/t and gs://b/t?x=t0ken", "abfs://***@account/t and gs://b/t?***"),
    ],
)
def test_passwords_and_queries_of_uris_are_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert not any(secret in redacted(text) for secret in SECRETS)


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000 + "://", "a://:" * 200_000, "a://" + ":@" * 500_000, "?://@:" * 200_000]
)
@pytest.mark.timeout(30)
def test_untrusted_text_is_read_once(text: str) -> None:
    """A pattern that backtracks takes hours for these."""
    assert len(redacted(text)) <= len(text) + 3


@pytest.mark.parametrize(
    "text",
    [
        "/var/lib/latermq",
        "http://127.0.0.1:5557/metrics",
        "spark://10.0.0.9:7077",
        "k8s://https://h:6443",
        "why? a@b:c",
    ],
)
def test_text_without_credentials_is_unchanged(text: str) -> None:
    assert redacted(text) == text


def test_errors_and_settings_contain_no_credentials() -> None:
    uri = "s3://AKIAKEY:hush@bucket/t?sig=t0ken"
    error = StoreError(f"{uri} is unavailable", hint=f"Check {uri}")
    config = load_config(settings=[f"pipeline.timeline={uri}"], environment={})
    identity = Identity("127.0.0.1:1", "1", 0)
    for text in (str(error), error.remark, repr(error), settings_text(config, identity)):
        assert "bucket" in text
        assert not any(secret in text for secret in SECRETS)


def test_a_truncated_error_contains_no_part_of_a_credential() -> None:
    error = StoreError("x" * (MAX_MESSAGE_CHARS - 12) + " s3://AKIAKEY:hush@bucket/t is unavailable")
    assert not any(secret in error.remark for secret in SECRETS)


@pytest.mark.parametrize("format_", ["text", "json"])
def test_log_lines_and_tracebacks_contain_no_credentials(stream: io.StringIO, format_: str) -> None:
    uri = "s3://AKIAKEY:hush@bucket/t?sig=t0ken"
    set_up_logs(load_config(settings=[f"log.format={format_}"], environment={}).log, "broker", stream=stream)
    try:
        raise OSError(f"cannot open {uri}")
    except OSError as error:
        structlog.get_logger().error("stalled", folder=uri, exc_info=error)
        logging.getLogger("elsewhere").error("failed: %s", uri, exc_info=error)
    assert stream.getvalue().count("bucket") >= 4
    assert not any(secret in stream.getvalue() for secret in SECRETS)
