"""One set of AWS variables for Arrow, delta-rs and Hadoop, without credentials in any setting."""

import pytest

from latermq.config import PipelineConfig
from latermq.errors import ConfigError
from latermq.pipeline.spark import s3_jars, session
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.s3 import S3Settings, check_uri, delta_options, hadoop_settings, s3_settings

LOCAL = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDNOBODY", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_SESSION_TOKEN": "hush-token"}


def test_a_server_of_ones_own_has_buckets_in_paths_and_a_region_that_any_server_takes() -> None:
    settings = s3_settings(LOCAL)
    assert settings == S3Settings("http://127.0.0.1:9000", "", virtual_hosts=False)
    assert hadoop_settings(settings) == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    options = delta_options(settings)
    assert (options["aws_endpoint"], options["aws_allow_http"]) == ("http://127.0.0.1:9000", "true")
    assert (options["aws_region"], options["aws_virtual_hosted_style_request"]) == ("us-east-1", "false")


def test_without_an_endpoint_it_is_aws_and_spark_defaults_are_left_alone() -> None:
    assert s3_settings({}) == S3Settings("", "", virtual_hosts=True)
    assert hadoop_settings(s3_settings({})) == {}
    settings = s3_settings({"AWS_DEFAULT_REGION": "eu-north-1"})
    assert hadoop_settings(settings) == {"fs.s3a.endpoint.region": "eu-north-1"}
    assert delta_options(settings)["aws_region"] == "eu-north-1"


def test_the_endpoint_of_s3_goes_before_that_of_all_services() -> None:
    variables = {"AWS_ENDPOINT_URL": "https://all", "AWS_ENDPOINT_URL_S3": "https://s3", "AWS_REGION": "x"}
    assert s3_settings(variables) == S3Settings("https://s3", "x", virtual_hosts=False)
    assert s3_settings({**variables, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "TRUE"}).virtual_hosts


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://host", "http://key:hush@host", "http://", "http://h?k=hush"]
)
def test_an_endpoint_that_is_not_an_address_is_refused_without_being_shown(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL is not the address") as refusal:
        s3_settings({"AWS_ENDPOINT_URL": endpoint})
    assert "hush" not in refusal.value.remark


@pytest.mark.parametrize("uri", ["s3a://key:hush@bucket/p", "s3a://", "s3://b/p?secret_key=hush", "s3a://bucket/p#x"])
def test_a_uri_with_anything_but_a_bucket_and_a_path_is_refused_without_being_shown(uri: str) -> None:
    with pytest.raises(ConfigError, match="has only a bucket and a path") as refusal:
        check_uri(uri)
    assert "hush" not in refusal.value.remark
    with pytest.raises(ConfigError, match="has only a bucket and a path"):
        open_root(uri)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_every_name_of_s3_is_the_one_that_spark_knows(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**LOCAL, **KEYS}.items():
        monkeypatch.setenv(name, value)
    root = open_root(f"{scheme}://bucket/some/where/")
    assert (root.uri, root.path, root.is_local) == ("s3a://bucket/some/where", "bucket/some/where", False)
    assert root.timeline == "s3a://bucket/some/where/timeline"


def test_no_setting_holds_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a session are arguments of the JVM, which every user of a machine can list."""
    for name, value in {**LOCAL, **KEYS}.items():
        monkeypatch.setenv(name, value)
    for module, name in ((session, "delta_jars"), (session, "s3_jars")):
        monkeypatch.setattr(module, name, list)
    settings = session.session_settings(PipelineConfig(timeline="s3a://bucket/p"))
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert settings["spark.delta.logStore.s3a.impl"] == s3_jars.LOG_STORE_CLASS
    assert settings["spark.executorEnv.AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:9000"
    options = open_root("s3a://bucket/p").delta_options
    assert options is not None
    for secret in KEYS.values():
        assert not [value for value in (*settings.values(), *options.values()) if secret in value]


def test_a_timeline_elsewhere_needs_no_jars_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "delta_jars", list)
    monkeypatch.setattr(session, "s3_jars", lambda: pytest.fail("they were looked for"))
    settings = session.session_settings(PipelineConfig(timeline="/var/lib/latermq/pipeline"))
    assert not [name for name in settings if "s3" in name]


def test_the_jars_for_s3_are_those_of_the_hadoop_that_spark_has() -> None:
    from pathlib import Path

    import pyspark

    [hadoop] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    assert f"org.apache.hadoop:hadoop-aws:{hadoop.stem.rpartition('-')[2]}" in s3_jars.PACKAGES.values()
    assert s3_jars.CHECKSUMS.keys() == s3_jars.PACKAGES.keys()
