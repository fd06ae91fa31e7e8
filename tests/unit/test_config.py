from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.config import Settings, load_settings, make_folder, write_whole
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
