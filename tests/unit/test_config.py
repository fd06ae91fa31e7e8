from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebbtide.config import Settings, load_settings, make_folder, write_whole
from ebbtide.connections import KafkaConnection
from ebbtide.errors import EbbtideError, UsageError


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.toml"
    file.write_text('home = "file"\ntimezone = "Europe/Warsaw"\nbootstrap_servers = "file:1"')
    environ = {"EBBTIDE_HOME": "environment", "EBBTIDE_TIMEZONE": "Asia/Tokyo"}
    settings = load_settings(environ=environ, file=file, home="flag")
    assert settings == Settings(Path("flag"), "file:1", "Asia/Tokyo")
    assert load_settings(environ={}, file=tmp_path / "none") == Settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('colour = "red"', "colour"),
        ("home = 7", "home = 7"),
        ("home =", "cannot be read"),
        ('timezone = "Mars/Base"', "There is no time zone 'Mars/Base'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "ebbtide.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_settings(environ={}, file=file)


def test_tables_are_in_the_home_unless_named_fully() -> None:
    settings = Settings(home=Path("/h"))
    assert settings.table("visits") == "/h/tables/visits"
    assert settings.table("/data/visits") == "/data/visits"
    assert settings.table("s3://b/visits") == "s3://b/visits"


def test_a_folder_that_cannot_be_written_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EbbtideError, match=r"Cannot write to .*file/x: .*--checkpoint"):
        make_folder(tmp_path / "file" / "x", "--checkpoint")


def test_write_whole_leaves_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "note", "a")
    write_whole(tmp_path / "note", "b")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("note", "b")]


KAFKA = 'bootstrap_servers = "file:1"\n[kafka]\nsasl.mechanism = "PLAIN"\n"client.id" = "file"\n'


def _properties(tmp_path: Path, name: str, text: str) -> str:
    file = tmp_path / name
    file.write_text(text)
    return str(file)


def test_kafka_is_one_value_of_the_first_that_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.toml"
    file.write_text(KAFKA)
    from_file = load_settings(environ={}, file=file)
    assert from_file.kafka_options == {"sasl.mechanism": "PLAIN", "client.id": "file"}
    assert (from_file.bootstrap_servers, from_file.kafka_config) == ("file:1", None)
    environ = {"EBBTIDE_KAFKA_CONFIG": _properties(tmp_path, "env", "client.id=environment")}
    settings = load_settings(environ=environ, file=file)
    assert settings.kafka_options == {"client.id": "environment"}, "not mixed with the file's"
    assert settings.kafka_config == environ["EBBTIDE_KAFKA_CONFIG"]
    flag = _properties(tmp_path, "flag", "client.id=flag\nbootstrap.servers=flag:1")
    settings = load_settings(environ=environ, file=file, kafka_config=flag)
    assert settings.kafka == KafkaConnection("flag:1", {"client.id": "flag"})
    environ["EBBTIDE_BOOTSTRAP_SERVERS"] = "environment:1"
    settings = load_settings(environ=environ, file=file, kafka_config=flag)
    assert settings.kafka.address == "flag:1", "its password is sent to its own address"
    assert load_settings(environ=environ, file=file).kafka.address == "environment:1"
    settings = load_settings(
        environ=environ, file=file, kafka_config=flag, bootstrap_servers="other:1"
    )
    assert settings.kafka.address == "other:1"
    none = load_settings(environ=environ, file=file, kafka_config=os.devnull)
    assert none.kafka == KafkaConnection("environment:1")


def test_the_address_may_have_librdkafkas_name(tmp_path: Path) -> None:
    config = tmp_path / "b.properties"
    config.write_text("metadata.broker.list=b:1 \nsecurity.protocol=SSL\n")
    environ = {"EBBTIDE_BOOTSTRAP_SERVERS": "e:1"}
    settings = load_settings(environ=environ, file=tmp_path / "none", kafka_config=str(config))
    assert settings.kafka == KafkaConnection("b:1", {"security.protocol": "SSL"})


def test_a_kafka_without_an_address_is_not_the_embedded_one(tmp_path: Path) -> None:
    config = _properties(tmp_path, "client.properties", "security.protocol=SSL")
    settings = load_settings(environ={}, file=tmp_path / "none", kafka_config=config)
    assert settings.names_kafka
    with pytest.raises(UsageError, match=r"client\.properties has no bootstrap\.servers"):
        _ = settings.kafka
    with pytest.raises(UsageError, match=r"\[kafka\] in ebbtide\.toml has no bootstrap"):
        _ = Settings(kafka_options={"security.protocol": "SSL"}).kafka


def test_a_source_of_its_own_gets_no_password_of_another_cluster() -> None:
    settings = Settings(
        bootstrap_servers="k:1", kafka_options={"sasl.password": "x", "group.id": "console"}
    )
    assert settings.kafka.options == {"sasl.password": "x"}, "Ebbtide chooses its groups itself"
    own = settings.connect({"bootstrap.servers": "other:1"})
    assert own == KafkaConnection("other:1")
    assert settings.connect({"ssl.key.password": "y"}) == KafkaConnection(
        "k:1", {"ssl.key.password": "y"}
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('kafka = "x"', "has kafka"),
        ("kafka_config = 7", "kafka_config = 7"),
        ('kafka_config = "x"\n[kafka]\n', "both kafka_config and"),
        ("[kafka]\nsasl.password = ['hunter2']", "sasl.password is not a text"),
        ('sasl_password = "hunter2"', "has sasl_password"),
        ('[kafkas]\nsasl.password = "hunter2"', "has kafkas"),
    ],
)
def test_a_wrong_kafka_is_named_without_its_secrets(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "ebbtide.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as refusal:
        load_settings(environ={}, file=file)
    assert "hunter2" not in str(refusal.value)


def test_settings_show_no_secret() -> None:
    assert "hunter2" not in repr(Settings(kafka_options={"sasl.password": "hunter2"}))


@pytest.mark.parametrize(
    ("home", "checkpoints"),
    [
        ("hdfs:///", "hdfs:///checkpoints"),
        ("hdfs:/user/ann", "hdfs:///user/ann/checkpoints"),
        ("file:/mnt/shared/", "file:///mnt/shared/checkpoints"),
        ("s3a://lake/", "s3a://lake/checkpoints"),
    ],
)
def test_a_home_is_a_url_as_hadoop_writes_it(home: str, checkpoints: str) -> None:
    settings = load_settings(environ={}, home=home)
    assert settings.location("checkpoints") == checkpoints
    assert load_settings(environ={}, home=settings.location()) == settings
    with pytest.raises(UsageError, match=r"names a host.*file:///mnt"):
        load_settings(environ={}, home="file://shared/x")
