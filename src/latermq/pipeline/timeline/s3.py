"""S3: one set of variables for the three clients that use a bucket: Arrow, delta-rs and Hadoop's S3A.

They are the variables that the tools of AWS use. Each client reads the credentials by itself, from the variables, the
profile or the machine, so that they appear in no setting, URI, message or process list.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from pyarrow import fs

from latermq.errors import ConfigError

SCHEMES = frozenset({"s3", "s3a", "s3n"})
# What an S3-compatible server expects if nothing else is said. AWS itself knows the region of a bucket.
_ANY_REGION = "us-east-1"
# A broker reads in a thread of its own, but a stalled server must not hold it for minutes. Arrow and delta-rs retry.
CONNECT_TIMEOUT_S = 5
STALL_TIMEOUT_S = 10  # of Arrow: without any byte
REQUEST_TIMEOUT_S = 30  # of delta-rs: for a whole request
_ATTEMPTS = 4
_RETRIES = 2


@dataclass(frozen=True)
class S3Settings:
    """Where S3 is. Without an endpoint it is AWS."""

    endpoint: str = ""
    region: str = ""
    virtual_hosts: bool = False  # whether buckets are names of hosts. Otherwise they are part of the path

    @property
    def is_plain_http(self) -> bool:
        return self.endpoint.startswith("http://")


def s3_settings(environment: Mapping[str, str] = os.environ) -> S3Settings:
    """The settings that the environment names."""
    endpoint = (environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or "").rstrip("/")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ConfigError(
                "AWS_ENDPOINT_URL is not the address of an S3 server",
                hint="Set it to http://HOST:PORT or https://HOST, without credentials",
            )
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    # By default as AWS has it, and as servers without wildcard names in DNS have it.
    stated = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower()
    return S3Settings(endpoint, region, stated == "true" or (not endpoint and stated != "false"))


def executor_variables(settings: S3Settings | None = None) -> dict[str, str]:
    """The variables that tell Python on executors where S3 is, which would use AWS otherwise. No credentials."""
    settings = settings or s3_settings()
    if not settings.endpoint:
        return {"AWS_REGION": settings.region} if settings.region else {}
    return {
        "AWS_ENDPOINT_URL_S3": settings.endpoint,
        "AWS_REGION": settings.region or _ANY_REGION,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(settings.virtual_hosts).lower(),
    }


def check_uri(uri: str) -> None:
    """Refuse a URI that holds credentials or options: it is shown in logs, replies and error messages."""
    bucket = uri.partition("://")[2].partition("/")[0]
    if not bucket or "@" in bucket or "?" in uri or "#" in uri:
        raise ConfigError(
            "the URI of a timeline on S3 has only a bucket and a path",
            hint="Set it to s3a://BUCKET/PATH; credentials and endpoint come from the AWS variables",
        )


def open_s3(bucket: str, settings: S3Settings | None = None) -> fs.FileSystem:
    """Arrow's client for a bucket."""
    return _open_s3(bucket, settings or s3_settings())


@lru_cache(maxsize=8)  # a client keeps its connections, and a broker opens its root for every window
def _open_s3(bucket: str, settings: S3Settings) -> fs.FileSystem:
    region = settings.region or (_ANY_REGION if settings.endpoint else fs.resolve_s3_region(bucket))
    scheme, _, host = settings.endpoint.partition("://")
    return fs.S3FileSystem(
        region=region,
        scheme=scheme or None,
        endpoint_override=host or None,
        force_virtual_addressing=settings.virtual_hosts,
        # One request for a small file instead of three. Errors are then reported when the file is closed.
        allow_delayed_open=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=STALL_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def delta_options(settings: S3Settings | None = None) -> dict[str, str]:
    """The options with which delta-rs opens a table on S3."""
    settings = settings or s3_settings()
    options = {
        "aws_virtual_hosted_style_request": str(settings.virtual_hosts).lower(),
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "timeout": f"{REQUEST_TIMEOUT_S}s",
        "max_retries": str(_RETRIES),
    }
    if settings.endpoint:
        options |= {
            "aws_endpoint": settings.endpoint,
            "aws_region": settings.region or _ANY_REGION,
            "aws_allow_http": str(settings.is_plain_http).lower(),
        }
    elif settings.region:
        options["aws_region"] = settings.region
    return options


def hadoop_settings(settings: S3Settings | None = None) -> dict[str, str]:
    """The settings of S3A. Without an endpoint those in spark-defaults.conf apply."""
    settings = settings or s3_settings()
    if not settings.endpoint:
        return {"fs.s3a.endpoint.region": settings.region} if settings.region else {}
    return {
        "fs.s3a.endpoint": settings.endpoint,
        "fs.s3a.endpoint.region": settings.region or _ANY_REGION,
        "fs.s3a.path.style.access": str(not settings.virtual_hosts).lower(),
        "fs.s3a.connection.ssl.enabled": str(not settings.is_plain_http).lower(),
    }
