"""URLs as Spark and as fsspec write them: the same place, and opened with Spark's settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientTimeout

from ebbtide import Files, hadoop
from ebbtide.archive import Archive
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings, load_settings
from ebbtide.connectors.base import SinkPlace
from ebbtide.errors import MissingExtraError, UsageError, pip_line
from ebbtide.hadoop import hadoop_settings, use_spark_settings
from ebbtide.locations import one_spelling, parse_url
from ebbtide.registry import absolute, note_use, read_recent
from ebbtide.rewind import RewindRequest, fork
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import delta_location, open_folder, open_writable
from ebbtide.storage.options import fsspec_options
from tests.trees import Shape, make

KEY = "c2VjcmV0LWtleQ=="
HA = {
    "dfs.nameservices": "lake",
    "dfs.ha.namenodes.lake": "a, b",
    "dfs.namenode.http-address.lake.a": "Node1:9870",
    "dfs.namenode.http-address.lake.b": "node2:9870",
    "fs.defaultFS": "hdfs://lake",
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hadoop, "_OF_THE_RUN", {})


def given(settings: Mapping[str, str]) -> None:
    use_spark_settings({f"spark.hadoop.{name}": value for name, value in settings.items()})


@pytest.mark.parametrize(
    "spellings",
    [
        ("s3://b/c", "s3a://b/c/", "s3n://b//c", "S3A://b/./c"),
        ("gs://b/c", "gcs://b/c"),
        (
            "abfss://data@ours.dfs.core.windows.net/c",
            "abfs://data@ours.dfs.core.windows.net/c",
            "wasbs://data@ours.blob.core.windows.net/c",
            "abfs://ours.dfs.core.windows.net/data/c",
            "az://data/c",
        ),
        ("hdfs://nn:8020/c", "hdfs://nn/c", "webhdfs://nn:9870/c", "webhdfs://ann@NN/c"),
    ],
)
def test_two_spellings_are_one_place(
    spellings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    assert {one_spelling(each) for each in spellings} == {one_spelling(spellings[0])}
    assert one_spelling(spellings[0]) != one_spelling(f"{spellings[0]}c")


def test_two_accounts_and_two_name_nodes_are_two_places() -> None:
    for first, second in (
        ("abfss://c@one.dfs.core.windows.net/c", "abfss://c@two.dfs.core.windows.net/c"),
        ("hdfs://one/c", "hdfs://two/c"),
        ("webhdfs://nn:1/c", "webhdfs://nn:2/c"),
    ):
        assert one_spelling(first) != one_spelling(second)


def test_a_name_service_is_one_place_whichever_node_is_active() -> None:
    given(HA)
    urls = ("hdfs://lake/c", "hdfs:///c", "webhdfs://node1:9870/c", "webhdfs://node2/c")
    assert {one_spelling(url) for url in urls} == {"hdfs://lake/c"}


def test_the_http_address_of_hdfs_comes_from_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EBBTIDE_WEBHDFS_PORT", "5000")
    assert one_spelling("hdfs://nn:9000/c") == "webhdfs://nn:5000/c"
    given({"fs.defaultFS": "hdfs://nn:9000", "dfs.namenode.http-address": "0.0.0.0:6000"})
    assert one_spelling("hdfs://nn:9000/c") == one_spelling("hdfs:///c") == "webhdfs://nn:6000/c"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hdfs:///c", r"names no name node, .* Write hdfs://HOST:PORT/PATH"),
        ("abfs://data/c", r"names no storage account. Write abfss://data@ACCOUNT\."),
    ],
)
def test_what_a_url_lacks_is_said(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_folder(url)
    assert one_spelling(url) == url


def test_a_checkpoint_is_remembered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.registry.recent_file", lambda: tmp_path / "recent.json")
    for url in ("s3://b/c", "s3a://b/d", "s3a://b/c"):
        note_use(url)
    assert read_recent() == ["s3a://b/c", "s3a://b/d"]


def test_a_fork_an_archive_and_a_sink_are_told_by_their_place() -> None:
    checkpoint: Any = SimpleNamespace(folder=open_folder("s3://b/c"))
    with pytest.raises(UsageError, match="s3a://b/c/fork lies inside the checkpoint itself"):
        fork._require_free(open_writable("s3a://b/c/fork"), checkpoint)
    archive = Archive("s3://b/t", 0, "visits", "at", "UTC", 0, 0, 0, 0, None, None, {}, "s3a://b/c")
    assert archive.is_of(checkpoint.folder)
    assert not archive.is_of(open_folder("s3://b/d"))
    assert (
        SinkPlace("delta", "t", "s3a://b/t").address == SinkPlace("delta", "t", "s3://b/t").address
    )


SITE = """<?xml version="1.0"?><configuration>
<property><name>fs.s3a.access.key</name><value>${env.OUR_KEY}</value></property>
<property><name>fs.s3a.secret.key</name><value> of-core-site </value></property>
<property><name>fs.s3a.endpoint</name><value>${our.host}:9000</value></property>
<property><name>our.host</name><value>minio</value></property>
</configuration>"""


def test_the_run_counts_before_spark_s_defaults_and_these_before_hadoop_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core-site.xml").write_text(SITE)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("OUR_KEY", "of-the-environment")
    found = hadoop_settings()
    assert (found["fs.s3a.access.key"], found["fs.s3a.endpoint"]) == (
        "of-the-environment",
        "minio:9000",
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(
        "spark.hadoop.fs.s3a.secret.key of-defaults\nspark.hadoop.fs.s3a.endpoint=http://other"
    )
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    use_spark_settings({"spark.hadoop.fs.s3a.secret.key": "of-the-run", "spark.master": "yarn"})
    found = hadoop_settings()
    assert (found["fs.s3a.secret.key"], found["fs.s3a.endpoint"]) == ("of-the-run", "http://other")
    assert found["fs.s3a.access.key"] == "of-the-environment"


@pytest.mark.parametrize("text", ["<configuration>", '<!DOCTYPE x [<!ENTITY a "b">]><x/>'])
def test_a_damaged_site_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core-site.xml").write_text(text)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=rf"{tmp_path}/core-site.xml"):
        open_folder("s3a://b/c")


SOON = {"requests_timeout": ClientTimeout(None, sock_connect=20, sock_read=20)}
"""A request that gets no answer ends before a lease."""


def options_of(url: str) -> dict[str, Any]:
    place = parse_url(url)
    assert place is not None
    return fsspec_options(place)


def test_settings_of_s3a_reach_fsspec_and_delta() -> None:
    given(
        {
            "fs.s3a.access.key": "k",
            "fs.s3a.secret.key": "s",
            "fs.s3a.session.token": "t",
            "fs.s3a.endpoint": "minio:9000",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.endpoint.region": "eu-west-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.bucket.other.access.key": "theirs",
        }
    )
    assert options_of("s3a://b/c") == {
        "key": "k",
        "secret": "s",
        "token": "t",
        "endpoint_url": "http://minio:9000",
        "client_kwargs": {"region_name": "eu-west-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }
    assert options_of("s3://other/c")["key"] == "theirs"
    given({"fs.s3a.connection.ssl.enabled": "False", "fs.s3a.path.style.access": "True "})
    assert options_of("s3a://b/c")["endpoint_url"] == "http://minio:9000"
    assert "config_kwargs" in options_of("s3a://b/c")
    assert delta_location("s3a://b/c") == (
        "s3://b/c",
        {
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_session_token": "t",
            "aws_endpoint_url": "http://minio:9000",
            "aws_region": "eu-west-1",
            "aws_virtual_hosted_style_request": "false",
            "aws_allow_http": "true",
        },
    )


def test_without_settings_the_environment_is_left_to_the_libraries() -> None:
    assert (options_of("s3://b/c"), delta_location("s3://b/c")) == ({}, ("s3://b/c", {}))
    assert (options_of("gs://b/c"), delta_location("/data/t")) == (SOON, ("/data/t", {}))


def test_settings_of_azure_reach_fsspec_and_delta() -> None:
    host = "ours.dfs.core.windows.net"
    given({f"fs.azure.account.key.{host}": KEY})
    url = f"abfss://data@{host}/c"
    assert options_of(url) == {"account_name": "ours", "account_key": KEY}
    assert KEY not in str(UsageError(f"{KEY} was quoted by a library."))
    named = {"azure_storage_account_name": "ours", "azure_storage_account_key": KEY}
    assert delta_location("abfs://ours.dfs.core.windows.net/data/c") == (url, named)
    # another account has another key
    assert "account_key" not in options_of("abfss://data@theirs.dfs.core.windows.net/c")
    oauth = {
        "fs.azure.account.oauth2.client.id": "app",
        "fs.azure.account.oauth2.client.secret": "s",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tide/oauth2/token",
    }
    given(oauth)
    assert options_of("abfss://data@theirs.dfs.core.windows.net/c") == {
        "account_name": "theirs",
        "client_id": "app",
        "client_secret": "s",
        "tenant_id": "tide",
    }


def test_a_connection_string_of_another_account_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=a;AccountKey={KEY}")
    assert open_folder("abfs://data/c").url == "abfss://data@a.dfs.core.windows.net/c"
    with pytest.raises(UsageError, match=r"in the account b, but .* is of a") as refused:
        open_folder("abfss://data@b.dfs.core.windows.net/c")
    assert KEY not in str(refused.value)


def test_a_key_of_the_settings_goes_before_a_connection_string(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"AccountName=a;AccountKey={KEY};BlobEndpoint=https://x"
    )
    other = "b29vcHM="
    given({"fs.azure.account.key.b.dfs.core.windows.net": other})
    filesystem = open_folder("abfss://data@b.dfs.core.windows.net/c").filesystem
    assert filesystem.service_client.url == "https://b.blob.core.windows.net/"
    assert filesystem.service_client.credential.account_key == other
    monkeypatch.setattr(hadoop, "_OF_THE_RUN", {})
    given({"fs.azure.sas.fixed.token.c.dfs.core.windows.net": "?sv=1&sig=x"})
    assert delta_location("abfss://data@c.dfs.core.windows.net/c")[1] == {
        "azure_storage_account_name": "c",
        "azure_storage_sas_key": "?sv=1&sig=x",
    }
    signed = open_folder("abfss://data@c.dfs.core.windows.net/c").filesystem.service_client
    assert signed._pipeline._transport.connection_config.read_timeout == 20
    assert signed.url.startswith("https://c.blob.core.windows.net/")
    # one of an application cannot be given so
    given({"fs.azure.account.oauth2.client.id": "app"})
    with pytest.raises(UsageError, match=r"in the account d, but .* is of a"):
        open_folder("abfss://data@d.dfs.core.windows.net/c")


def test_settings_of_gcs_and_hdfs_reach_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    given({"fs.gs.auth.service.account.json.keyfile": "/k.json", "fs.gs.project.id": "p"})
    assert options_of("gs://b/c") == {"token": "/k.json", "project": "p", **SOON}
    assert delta_location("gs://b/c")[1] == {"google_service_account": "/k.json"}
    assert options_of("hdfs://nn/c") == {"user": "ann"}
    given({"hadoop.security.authentication": "kerberos", "dfs.http.policy": "HTTPS_ONLY"})
    assert options_of("hdfs://nn/c") == {"use_https": True, "kerberos": True}
    assert one_spelling("hdfs://nn/c") == "webhdfs://nn:9871/c"
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)  # as if not installed
    with pytest.raises(MissingExtraError, match="pip install requests-kerberos"):
        open_folder("hdfs://nn/c")


def test_a_missing_extra_prints_its_pip_line() -> None:
    urls = {
        "s3": "s3a://b/c",
        "gcs": "gs://b/c",
        "azure": "abfss://d@a.dfs.core.windows.net/c",
        "hdfs": "hdfs://nn/c",
    }
    script = f"""
import sys
sys.modules.update(dict.fromkeys(("s3fs", "gcsfs", "adlfs", "requests")))  # as if not installed
from ebbtide.cli import main
for url in {list(urls.values())}:
    sys.argv = ["ebbtide", "inspect", url]
    try:
        main()
    except SystemExit as end:
        assert end.code == 1
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    for extra, url in urls.items():
        line = f"{url} needs the extra '{extra}'. Type: {pip_line(extra)}"
        assert line in done.stderr, done.stderr


def test_a_url_may_be_written_as_hadoop_prints_it(tmp_path: Path) -> None:
    settings = load_settings(environ={}, home="hdfs:/ebbtide")
    assert settings.table("hdfs:/lake/t") == "hdfs:///lake/t"
    with pytest.raises(UsageError, match=r"--home s3a:/lake is neither .* Write s3a://lake, or"):
        load_settings(environ={}, home="s3a:/lake")
    assert Settings().table("file:/mnt/t") == "file:///mnt/t"
    assert Files("file:/mnt/in", schema="a INT").location == "file:///mnt/in"
    assert absolute("file:/mnt/c") == "/mnt/c"
    make(tmp_path / "c", Shape(batches=2))
    assert read_checkpoint(f"file:{tmp_path}/c").logs.latest_committed is not None
    assert RewindRequest("hdfs:/c", ToBatch(1)).checkpoint == "hdfs:///c"
    with pytest.raises(UsageError, match="names a version of an object, not a folder"):
        open_folder("s3a://b/c?versionId=1")
    with pytest.raises(UsageError, match=r"dbfs:/c is a path .* write /dbfs/c\."):
        open_folder("dbfs:/c")
