"""Passwords and signatures in URLs: used to open, never shown, never written anywhere."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import fsspec
import pytest

from ebbtide import Delta, Files, credentials, errors
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.credentials import give_credentials, take_credentials
from ebbtide.errors import EbbtideError, UsageError, first_line, mask
from ebbtide.reprocessing.journal import settings_flags
from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.stream import StreamOptions
from ebbtide.storage import open_folder
from ebbtide.systems import find_pipeline
from ebbtide.web.context import WebContext
from tests.conftest import Cli
from tests.inside import no_waiting_for_the_disk  # noqa: F401
from tests.outputs import write_files
from tests.trees import Shape, make
from tests.unit.web.conftest import Visitor, no_recent_ones  # noqa: F401
from tests.vault import SECRETS, VaultFileSystem, contents, url_of

CKPT, SINK, FORK = map(url_of, ("visits", "out", "fork"))
PUBLIC = "vault://ann@host/visits"


@pytest.fixture(autouse=True)
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old checkpoint and its file sink in the vault; nobody has given the password yet."""
    monkeypatch.setattr(credentials, "_GIVEN", {})
    monkeypatch.setattr(errors, "_HIDDEN", set())
    monkeypatch.chdir(tmp_path)
    VaultFileSystem.store.clear()
    make(tmp_path / "local" / "visits", Shape("changelog"))
    write_files(tmp_path / "local" / "out", range(7))
    here = (tmp_path / "local").as_uri()
    for log in (tmp_path / "local" / "out" / "_spark_metadata").iterdir():
        log.write_text(log.read_text().replace(here, "vault://ann@host"))
    filesystem = fsspec.core.url_to_fs(CKPT)[0]
    for file in (path for path in (tmp_path / "local").rglob("*") if path.is_file()):
        filesystem.pipe_file(f"/{file.relative_to(tmp_path / 'local')}", file.read_bytes())
    for stored in VaultFileSystem.store.values():
        stored.created = stored.modified = datetime(2025, 9, 4, tzinfo=timezone.utc)
    VaultFileSystem.clear_instance_cache()


def assert_clean(*texts: str) -> None:
    for text in texts:
        for secret in SECRETS:
            at = text.find(secret)
            assert at < 0, f"{secret} in: {text[max(0, at - 200) : at + 40]}"


def assert_all_clean(tmp_path: Path) -> None:
    """No file holds a secret: neither in the vault nor in the home, the plans, the user's state."""
    assert_clean(*contents(), *contents().values())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert_clean(*map(str, files), *(path.read_text("latin-1") for path in files))


COMMANDS = [
    ("inspect", CKPT),
    ("inspect", CKPT, "-o", "json"),
    ("verify", CKPT),
    ("verify", CKPT, "-o", "json"),
    ("history", CKPT, "-o", "json"),
    ("sinks", CKPT, "--search", url_of(""), "-o", "json"),
    ("sinks", CKPT, "--sink-files", SINK),
    ("rewind", CKPT, "--to-batch", "5"),
    ("rewind", CKPT, "--to-batch", "5", "-o", "json", "--save-plan", "plan.json"),
    ("apply", "plan.json", "--yes", "--assume-stopped", "-o", "json"),
    ("backups", CKPT, "-o", "json"),
    ("undo", CKPT, "--yes", "--assume-stopped"),
    ("rewind", CKPT, "--to-batch", "4", "--execute", "--sink-files", SINK, "--assume-stopped"),
    ("backups", CKPT, "--prune", "--keep", "1", "--yes"),
    ("fork", CKPT, FORK, "--at-batch", "3", "-o", "json"),
    ("plan", "visits-counter", "--since", "2025-09-04", "--checkpoint", CKPT),
]


def test_no_command_shows_or_saves_them(inside: Cli, tmp_path: Path) -> None:
    said = {words: inside(*words, "--home", tmp_path / "home") for words in COMMANDS}
    for words, done in said.items():
        assert_clean(done.stdout, done.stderr)
        expected = (0, 1) if words[0] in ("plan", "history") else (0,)
        assert done.returncode in expected, (words, done.stderr)
    assert_all_clean(tmp_path)
    # what is printed to be copied names the place
    assert f"ebbtide rewind {PUBLIC} --to-batch 5 --execute" in said[COMMANDS[7]].stderr
    assert f"ebbtide undo {PUBLIC}" in said[COMMANDS[9]].stderr
    assert json.loads(said[COMMANDS[8]].stdout)["checkpoint"] == PUBLIC
    audit = contents()["/visits/.ebbtide/audit.jsonl"]
    assert len(audit.splitlines()) >= 3
    assert "/fork/.ebbtide/fork.json" in contents()


def test_a_home_shows_none(inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(url=url_of("home"))
    assert settings.location("tables", "t") == "vault://ann@host/home/tables/t"
    assert_clean(repr(settings), *settings_flags(settings))
    monkeypatch.setenv("EBBTIDE_HOME", url_of("home"))
    done = inside("doctor", "-o", "json")
    assert "vault://ann@host/home" in done.stdout
    monkeypatch.delenv("EBBTIDE_HOME")
    (tmp_path / "ebbtide.toml").write_text(f'home = "{url_of("home")}"')
    from_file = inside("doctor", "-o", "json")
    assert "vault://ann@host/home" in from_file.stdout
    assert_clean(done.stdout, done.stderr, from_file.stdout, from_file.stderr)


def test_no_usage_error_shows_them(cli: Cli) -> None:
    one_too_many = cli("inspect", "x", CKPT)
    no_value = cli(
        "run", "visits-counter", "--conf", f"spark.hadoop.fs.s3a.secret.key {SECRETS[0]}"
    )
    no_command = [cli(CKPT), cli("state", CKPT)]
    assert {done.returncode for done in (one_too_many, no_value, *no_command)} == {2}
    assert_clean(*(done.stderr for done in no_command))
    assert "--conf spark.hadoop.fs.s3a.secret.key has no value" in no_value.stderr
    assert_clean(one_too_many.stderr, no_value.stderr)


def test_no_repr_shows_them() -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRETS[0]}
    pipeline = replace(find_pipeline("visits-counter"), conf=conf)
    assert_clean(repr(pipeline), repr(StreamOptions(conf=conf)))


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "abfss"])
def test_a_secret_that_looks_like_a_port_is_ambiguous(scheme: str) -> None:
    with pytest.raises(UsageError, match=rf"^{scheme}://AKIAX:\*\*\* is ambiguous"):
        take_credentials(f"{scheme}://AKIAX:9/topsecret99@bucket/visits")
    assert "topsecret99" not in mask(f"{scheme}://AKIAX:9/topsecret99@bucket/visits is gone")


def test_a_saved_plan_needs_them_again(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("rewind", CKPT, "--to-batch", "5", "--sink", "none", "--save-plan", "plan.json")
    assert inside(*words).returncode == 0
    monkeypatch.setattr(credentials, "_GIVEN", {})  # another process, another day
    VaultFileSystem.clear_instance_cache()
    apply = ("apply", "plan.json", "--yes", "--assume-stopped")
    refused = inside(*apply)
    assert (refused.returncode, f"{PUBLIC} cannot be opened" in refused.stderr) == (2, True)
    other = inside(*apply, "--checkpoint", url_of("other"))
    assert "is a plan for vault://ann@host/visits, not for vault://ann@host/other" in other.stderr
    done = inside(*apply, "--checkpoint", CKPT)
    assert done.returncode == 0, done.stderr
    assert_clean(refused.stderr, other.stderr, done.stdout, done.stderr)


def test_no_page_shows_or_saves_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    context = WebContext(Settings(home=home), opened=(CKPT,))
    visitor = Visitor(context).enter()
    answers = [visitor.post("/checkpoints", location=FORK)]
    answers.append(visitor.post("/checkpoints", location=f"gopher://ann:{SECRETS[0]}@x/y"))
    plan = "/rewind?to_batch=4&assume_stopped=on"
    paths = ["", "/facts", "/timeline.json", "/batches/5", "/metrics", plan, "/undo", "/reprocess"]
    paths += [f"{plan}&sink_files={SINK}".replace("%", "%25"), f"{plan}&sink=none", "/state"]
    answers += [visitor.get(visitor.place(path)) for path in ["", *paths]]
    answers += [visitor.get(path) for path in ("/", "/audit")]
    shown = visitor.get(visitor.place(f"{plan}&sink=none")).text
    form = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', shown)
    fields = {**dict(form), "sink": "none", "confirm": "visits"}
    started = visitor.post(visitor.place("/rewind"), **fields)
    task = context.tasks.of(visitor.key())[0]
    ended = context.tasks.wait(task.id)
    answers += [started, visitor.get(f"/tasks/{task.id}"), visitor.get(visitor.place("/undo"))]
    assert ended.state == "done", ended
    assert_clean(*(answer.text for answer in answers), str(ended), started.headers["location"])
    assert_clean(*(str(answer.headers) for answer in answers))
    assert PUBLIC in visitor.get("/").text
    assert PUBLIC in (home / "audit.jsonl").read_text()
    assert_all_clean(tmp_path)
    context.tasks.close()


def test_values_do_not_hold_them() -> None:
    request = RewindRequest(CKPT, ToBatch(5), sink_files=SINK, assume_stopped=True)
    plan = plan_rewind(request)
    checkpoint = read_checkpoint(CKPT)
    values = [request, request.command(), plan.to_dict(), checkpoint.location]
    values += [Delta(CKPT), Files(CKPT, schema="a INT"), open_folder(CKPT).address]
    values += [open_folder(CKPT).url, open_folder(CKPT).beside(SINK).url]
    assert_clean(*map(repr, values))
    assert open_folder(PUBLIC).names() == open_folder(CKPT).names()


def test_errors_of_other_libraries() -> None:
    take_credentials(CKPT)
    quoted = [ValueError(f"login as {secret} failed") for secret in SECRETS]
    assert_clean(*map(first_line, quoted), *(str(EbbtideError(str(each))) for each in quoted))
    wrong = CKPT.replace(SECRETS[0], "wr0ng-secret")
    with pytest.raises(UsageError, match=r"cannot be opened") as refused:
        open_folder(wrong)
    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("sftp://u:pa/ss@h/x", "sftp://u:***@h/x"),
        ("sftp://u:p@ss@h/x", "sftp://u:***@h/x"),
        ("sftp://u:p@s/s@h/x", "sftp://u:***@h/x"),
        ("sftp://u:pa%2Fss@h/x and then", "sftp://u:***@h/x and then"),
        ('"sftp://u:pa\\"ss@h/x"', '"sftp://u:***@h/x"'),
        ("s3://AKIA:sec/ret+=@bucket/c", "s3://AKIA:***@bucket/c"),
        ("https://h/c?X-Amz-Signature=ab12&x=1", "https://h/c?X-Amz-Signature=***&x=1"),
        ("https://h/c?X-Amz-Security-Token=ab%2F12", "https://h/c?X-Amz-Security-Token=***"),
        ("https://h/c?token=ab12 is gone", "https://h/c?token=*** is gone"),
        ("https://h/c?se=1&sig=a%2Bb%3D'", "https://h/c?se=1&sig=***'"),
        ("AccountName=a;AccountKey=ab/+c==;EndpointSuffix=x", "AccountName=a;AccountKey=***;E"),
        ("SharedAccessSignature=sv", "SharedAccessSignature=***"),
        ("spark.hadoop.fs.s3a.secret.key=abc", "spark.hadoop.fs.s3a.secret.key=***"),
        ('jaas password="a b;c";', "jaas password=***;"),
        ("fs.azure.account.key.a.dfs.x=ab/c==", "fs.azure.account.key.a.dfs.x=***"),
        ("spark.hadoop.fs.azure.sas.c.a.x=sv", "spark.hadoop.fs.azure.sas.c.a.x=***"),
        # no secrets
        ('Write it as: Login required username="…" password="…";', None),
        ("hdfs://name:8020/user/ann@example.com", None),
        ("SASL_SSL://a:9093,SASL_SSL://b:9093 and me@example.com", None),
        ("http://127.0.0.1:8765/checkpoints?x=1", None),
        ('{"a":"kafka://h:9092","b":"x@y"}', None),
        ("abfs://container@account.dfs.core.windows.net/c", None),
        ("topic=visits key=window.start sign=1", None),
    ],
)
def test_mask(text: str, masked: str | None) -> None:
    assert mask(text).startswith(masked or text)


@pytest.mark.parametrize("length", [299, 300, 301, 4_096, 4_097, 100_000])
@pytest.mark.parametrize("scheme", ["s3a", "sftp"])
def test_a_long_password_is_masked_whole(scheme: str, length: int) -> None:
    for password in ("x" * length, "/x" * (length // 2), "x'" * (length // 2)):
        text = f"{scheme}://u:{password}@h/c is gone"
        assert mask(text) == str(EbbtideError(text)) == f"{scheme}://u:***@h/c is gone"
    signed = f"https://h/c?sig={'x' * length}&se=1"
    assert mask(signed) == "https://h/c?sig=***&se=1"


@pytest.mark.parametrize(
    "part", ["://a:", "s3://", "://a:/", "s3://a:x'", "://a:b@", "s3://k:p@h "]
)
def test_a_long_text_is_masked_at_once(part: str) -> None:
    began = time.process_time()
    mask(part * 50_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("given", "public"),
    [
        ("sftp://u:pw@h:22/x", "sftp://u@h:22/x"),
        ("sftp://:pw@h/x", "sftp://h/x"),
        ("sftp://u:p@ss@h/x", "sftp://u@h/x"),
        ("simplecache::ftp://u:pw@h/x", "simplecache::ftp://u@h/x"),
        ("https://h/x?versionId=3", "https://h/x?versionId=3"),
        ("abfs://container@account/x@y", "abfs://container@account/x@y"),
        ("hdfs://name:8020/user/ann@example.com", "hdfs://name:8020/user/ann@example.com"),
        ("hdfs://[::1]:8020/ann@example.com", "hdfs://[::1]:8020/ann@example.com"),
        ("/data/a:b@c", "/data/a:b@c"),
        ("sftp://u@h:22/a@b", "sftp://u@h:22/a@b"),
        ("./sftp://u:pw@h", "./sftp://u:pw@h"),
    ],
)
def test_taken_and_given(given: str, public: str) -> None:
    assert take_credentials(given) == public
    assert take_credentials(public) == public
    assert give_credentials(public) == (given, {})


def test_given_as_options() -> None:
    place = "abfs://c@account.dfs.core.windows.net/x"
    assert take_credentials(f"{place}?sv=1&sig=a%3D") == place
    assert give_credentials(f"{place}/y") == (f"{place}/y", {"sas_token": "sv=1&sig=a%3D"})
    assert take_credentials("s3a://AKIA:a%2Fb@bucket/x") == "s3a://bucket/x"
    options = {"key": "AKIA", "secret": "a/b"}
    assert give_credentials("s3a://bucket/y") == ("s3a://bucket/y", options)


def test_each_folder_has_its_own() -> None:
    """Two signatures of one container, as in a fork from one folder to another."""
    container = "abfss://c@account.dfs.core.windows.net"
    for name in ("a", "b", "b/deeper"):
        take_credentials(f"{container}/{name}?sig=of-{name}")
    folders = {"a": "a", "b": "b", "b/x": "b", "b/deeper/x": "b/deeper", "bb": "b/deeper"}
    for folder, given in folders.items():
        assert give_credentials(f"{container}/{folder}")[1] == {"sas_token": f"sig=of-{given}"}
    assert give_credentials("abfss://other@account.dfs.core.windows.net/a")[1] == {}
    take_credentials("s3://KEY1:first@b/x")
    take_credentials("s3://KEY2:second@b/y")
    assert give_credentials("s3://b/x/z")[1]["secret"] == "first"


def test_they_are_found_by_any_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    spellings = {
        "S3A://KEY1:sec%2Fret@b/x": ("s3a://b/x", "s3://b/x"),
        "wasbs://c@account.blob.core.windows.net/x?sig=a1": (
            "abfss://c@account.dfs.core.windows.net/x",
            "az://c/x",
        ),
        "az://d/x?sig=a2": ("abfss://d@account.dfs.core.windows.net/x",),
    }
    for given, others in spellings.items():
        options = give_credentials(take_credentials(given))[1]
        assert options in ({"key": "KEY1", "secret": "sec/ret"}, {"sas_token": given[-6:]})
        for other in others:
            assert give_credentials(other) == (other, options)
    assert take_credentials("S3A://KEY1:secret@b/x") == "S3A://b/x"
    reopened = open_folder(open_folder("az://e/x?sig=a3").url)
    assert reopened.filesystem.sas_token == "?sig=a3"


def test_a_cache_opens_what_it_caches_with_them() -> None:
    cache = open_folder("simplecache::s3a://KEY1:sec%2Fret@b/x")
    assert cache.url == "simplecache::s3a://b/x"
    assert (cache.filesystem.fs.key, cache.filesystem.fs.secret) == ("KEY1", "sec/ret")


@pytest.mark.parametrize(
    "url", [f"ftp://u:{password}@h/x" for password in ("pa/ss", "p@s/s", "p?s", "12/secret9")]
)
def test_a_password_that_no_url_can_hold(url: str) -> None:
    """Half of it would be a part of the path, and be shown."""
    with pytest.raises(UsageError, match="FSSPEC_FTP_PASSWORD") as refused:
        take_credentials(url)
    assert str(refused.value).startswith("ftp://u:*** is ambiguous: ")
