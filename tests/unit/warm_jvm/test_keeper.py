"""The keeper of a warm JVM: who may use it, and when it ends; a script stands for the JVM."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ebbtide.config import Settings
from ebbtide.warm_jvm import ask_keeper, borrowing, keeper
from ebbtide.web import subprocesses

JVM = """\
import os, signal, struct, sys, time
text = open(sys.argv[2]).read()
if text == "fail":
    sys.exit(1)
while text == "hang":
    time.sleep(1)
if text == "slow":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(path + ".part", "wb") as file:
    file.write(struct.pack(">ii", 4321, len(text.encode())) + text.encode())
os.rename(path + ".part", path)
sys.stdin.read()
if text == "slow":
    time.sleep(1)
"""
"""It tells its settings as the secret of its gateway, and ends when stdin is closed."""


class Scene:
    """A home, the keeper in it, and lines to that."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home)
        self.folder = home / "warm"
        self.jvm = home.parent / "jvm"
        self.jvm.write_text(f"#!{sys.executable}\n{JVM}")
        self.jvm.chmod(0o700)
        self.lines: list[Any] = []

    def start(self, properties: str = "secret", key: str = "a", seconds: float = 60.0) -> Any:
        """The line of the command that starts a keeper."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = borrowing._start_keeper(self.folder)
        self.lines.append(line)
        spec = {"folder": str(self.folder), "app": "visits", "key": key, "seconds": seconds}
        line.say({**spec, "command": [str(self.jvm)], "properties": properties})
        return line

    def use(self, key: str = "a") -> tuple[Any, dict[str, Any]]:
        """A command's line to the keeper that is there, and the answer."""
        line = borrowing._connect(self.folder)
        assert line is not None
        self.lines.append(line)
        return line, line.ask({"do": "use", "key": key})

    def processes(self) -> list[psutil.Process]:
        """The keeper and what it started, by their working or executable files."""
        names = (keeper.__file__, str(self.jvm))
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(name in (process.info["cmdline"] or ()) for name in names)
            and _is_in(process, self.settings.home.parent)
        ]

    def is_gone(self) -> bool:
        """Whether no process is left, nor anything in the home that a start has made."""
        left = {file.name for file in self.folder.glob("*")}
        return not self.processes() and left <= {"lock", "output.log"}


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return str(folder) in process.environ().get("KEEPER_TEST", "")
    except psutil.Error:
        return False


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="ebbtide-warm-") as folder:
        monkeypatch.setenv("KEEPER_TEST", folder)
        scene = Scene(Path(folder) / "home")
        yield scene
        for line in scene.lines:
            line.close()
        for process in scene.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def give_back(line: Any) -> None:
    line.say({"do": "done"})
    line.close()


def test_a_jvm_is_lent_to_one_command_after_the_other(scene: Scene) -> None:
    first = scene.start("password=ä")
    assert first.hear() == {"port": 4321, "secret": "password=ä"}
    assert stat.S_IMODE((scene.folder / "socket").stat().st_mode) == 0o600
    assert not (scene.folder / "start").exists()
    status = ask_keeper(scene.settings, "status")
    assert (status["app"], status["busy"], status["commands"]) == ("visits", True, 1)
    # in use
    assert scene.use()[1] == {"busy": True}
    assert ask_keeper(scene.settings, "stop") == {"busy": True}
    # given back: at once for the next
    give_back(first)
    second, gateway = scene.use()
    assert gateway == {"port": 4321, "secret": "password=ä"}
    give_back(second)
    status = ask_keeper(scene.settings, "status")
    assert (status["pid"], status["busy"], status["commands"]) == (status["pid"], False, 2)
    # told to end
    assert ask_keeper(scene.settings, "stop")["pid"] == status["pid"]
    assert not psutil.pid_exists(status["pid"])
    assert not (scene.folder / "socket").exists()
    assert ask_keeper(scene.settings, "stop") == {}


def test_a_command_that_hangs_up_ends_the_jvm(scene: Scene) -> None:
    line = scene.start()
    line.hear()
    assert len(scene.processes()) == 2
    line.close()
    wait_until(scene.is_gone)


def test_whoever_makes_a_jvm_end_sees_it_end(scene: Scene) -> None:
    first = scene.start("slow")
    first.hear()
    give_back(first)
    line, _ = scene.use()
    jvm = ask_keeper(scene.settings, "status")["pid"]
    line.hang_up()
    line.await_end()
    assert not psutil.pid_exists(jvm)


def test_a_jvm_that_ends_is_not_lent(scene: Scene) -> None:
    """The command that has it is killed in the moment in which the next one asks."""
    ours, theirs = socket.socketpair()
    of = keeper.Keeper(theirs, {"key": "a", "seconds": 60.0})
    of._gateway = {"port": 4321, "secret": ""}
    of._jvm = SimpleNamespace(is_alive=True)  # type: ignore[assignment]
    scene.folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scene.folder / "socket"))
        listener.listen()
        line = borrowing._connect(scene.folder)
        assert line is not None
        scene.lines.append(line)
        line.say({"do": "use", "key": "a"})
        ours.close()
        of._attend(listener)
        assert not of._is_needed()
        assert line.hear(0.1) == {}


def test_a_signal_holds_although_a_command_ends_well_then(scene: Scene) -> None:
    ours, theirs = socket.socketpair()
    of = keeper.Keeper(theirs, {"key": "a", "seconds": 60.0})
    of._gateway = {"port": 4321, "secret": ""}
    of._jvm = SimpleNamespace(is_alive=True)  # type: ignore[assignment]
    scene.folder.mkdir(parents=True)
    with ours, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scene.folder / "socket"))
        listener.listen()
        ours.sendall(b'{"do": "done"}\n')
        of.stop()
        of._attend(listener)
    assert of._is_told_to_end


def test_a_start_waits_until_the_last_jvm_has_ended(scene: Scene) -> None:
    """A command is killed, and typed again at once."""
    killed = scene.start("slow")
    killed.hear()
    killed.close()
    wait_until(lambda: not (scene.folder / "socket").exists())
    assert scene.processes()
    assert scene.start("another").hear() == {"port": 4321, "secret": "another"}


@pytest.mark.parametrize("seconds", [0, 0.01, 0.03, 0.1, 0.3])
def test_a_start_can_be_cancelled_at_any_moment(scene: Scene, seconds: float) -> None:
    line = scene.start("hang")
    time.sleep(seconds)
    line.hang_up()
    line.await_end()
    wait_until(scene.is_gone)


def test_a_start_is_cancelled_before_it_was_asked_for(scene: Scene) -> None:
    scene.folder.mkdir(parents=True)
    borrowing._start_keeper(scene.folder).close()
    wait_until(scene.is_gone)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_jvm_ends_with_its_keeper(scene: Scene, how: signal.Signals) -> None:
    line = scene.start()
    line.hear()
    (process,) = [p for p in scene.processes() if keeper.__file__ in p.cmdline()]
    process.send_signal(how)
    line.await_end()
    wait_until(lambda: not scene.processes())
    # whatever a kept socket of a killed one says, the next command starts another
    assert ask_keeper(scene.settings, "status") == {}
    assert scene.start("another").hear()["secret"] == "another"


def test_a_jvm_that_does_not_start_is_no_jvm(scene: Scene) -> None:
    assert scene.start("fail").hear() == {}
    wait_until(scene.is_gone)


def test_a_keeper_ends_with_its_jvm(scene: Scene) -> None:
    line = scene.start()
    line.hear()
    give_back(line)
    os.kill(ask_keeper(scene.settings, "status")["pid"], signal.SIGKILL)
    wait_until(scene.is_gone)


def test_a_keeper_ends_when_it_is_idle(scene: Scene) -> None:
    line = scene.start(seconds=0.5)
    line.hear()
    time.sleep(1.5)
    assert scene.processes()  # in use
    give_back(line)
    wait_until(scene.is_gone)


def test_a_keeper_ends_when_its_home_is_deleted(scene: Scene) -> None:
    line = scene.start()
    line.hear()
    give_back(line)
    shutil.rmtree(scene.settings.home)
    wait_until(lambda: not scene.processes())


def test_another_jvm_takes_the_place_of_an_idle_one(scene: Scene) -> None:
    line = scene.start(key="a")
    line.hear()
    give_back(line)
    old = ask_keeper(scene.settings, "status")["pid"]
    assert scene.use("b")[1] == {}
    assert not psutil.pid_exists(old)
    assert scene.start(key="b").hear()["port"] == 4321


def test_a_home_has_one_keeper(scene: Scene) -> None:
    scene.start().hear()
    assert scene.start().hear() == {"busy": True}
    assert ask_keeper(scene.settings, "status")["busy"]


def test_settings_are_in_no_file(scene: Scene) -> None:
    scene.start("password=hang me").hear()
    found = [file for file in scene.settings.home.rglob("*") if file.is_file()]
    assert not any(b"hang me" in file.read_bytes() for file in found)
    assert not any("hang me" in " ".join(process.cmdline()) for process in scene.processes())


@pytest.mark.parametrize("descriptors", ["/proc/self/fd", "/nowhere"])
def test_a_long_home_has_a_keeper_too(
    scene: Scene, descriptors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowing, "_DESCRIPTORS", Path(descriptors))
    scene.settings = Settings(home=scene.settings.home / ("x" * 120))
    scene.folder = scene.settings.home / "warm"
    line = scene.start()
    line.hear()
    give_back(line)
    assert ask_keeper(scene.settings, "status")["busy"] is False


def test_the_key_changes_with_whatever_a_jvm_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(tmp_path / "spark/bin/spark-submit"), "pyspark-shell"]
    conf = {"spark.jars": f"{tmp_path}/a.jar"}

    def take() -> str:
        return borrowing.take_key(command, conf)

    monkeypatch.chdir(tmp_path)
    keys = [take()]
    monkeypatch.setenv("SHLVL", "7")
    monkeypatch.setenv(subprocesses.MARK, "a1")  # another one for each command of the web UI
    (tmp_path / "unrelated").touch()
    assert take() == keys[0]
    (tmp_path / "a.jar").write_text("a")
    keys.append(take())
    conf["spark.app.name"] = "another"
    keys.append(take())
    monkeypatch.setenv("SOME_VARIABLE", "1")
    keys.append(take())
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "hadoop"))
    keys.append(take())
    (tmp_path / "hadoop").mkdir()
    (tmp_path / "hadoop/core-site.xml").write_text("<configuration/>")
    keys.append(take())
    (tmp_path / "spark/conf").mkdir(parents=True)
    (tmp_path / "spark/conf/spark-env.sh").touch()
    keys.append(take())
    (tmp_path / "java").mkdir()
    (tmp_path / "java/release").write_text("17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    keys.append(take())
    monkeypatch.setattr(borrowing, "__version__", "another")
    keys.append(take())
    monkeypatch.chdir("java")
    keys.append(take())
    assert len(set(keys)) == len(keys)


def test_the_key_changes_with_a_jar_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jar = tmp_path / "libs/own.jar"
    jar.parent.mkdir()
    ways: list[tuple[list[str], dict[str, str]]] = [
        ([], {"spark.driver.extraClassPath": f"/a.jar:{tmp_path}/libs/*"}),
        ([], {"spark.jars": f"/a.jar,file:{jar}"}),
        ([], {"spark.jars": f"file://{jar}"}),
        (["--jars", f"/a.jar,{jar}"], {}),
        ([f"--driver-class-path={tmp_path}/libs/*"], {}),
        (["--conf", f"spark.jars={jar}"], {}),
    ]
    for n, (words, conf) in enumerate(ways):
        command = ["spark/bin/spark-submit", *words, "pyspark-shell"]
        jar.write_text("a" * n)
        before = borrowing.take_key(command, conf)
        assert borrowing.take_key(command, conf) == before
        jar.write_text("a" * (n + 1))
        assert borrowing.take_key(command, conf) != before, (words, conf)
    command = ["spark/bin/spark-submit", "--conf", f"spark.local.dir={tmp_path}", "pyspark-shell"]
    before = borrowing.take_key(command, {})
    (tmp_path / "blockmgr-1").mkdir()
    assert borrowing.take_key(command, {}) == before


@pytest.fixture
def said(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a command says whose Spark submits with the script, and starts a JVM of its own."""
    from ebbtide.runtime import session, versions

    said: list[str] = []
    monkeypatch.setattr(session, "start_own_jvm", lambda _conf: said.append("own"))
    spark = scene.jvm.parent / "spark"
    (spark / "bin").mkdir(parents=True)
    scene.jvm.rename(spark / "bin/spark-submit")
    scene.jvm = spark / "bin/spark-submit"
    monkeypatch.setattr(versions, "spark_home", lambda: spark)
    monkeypatch.setattr(session, "to_properties", lambda conf: conf["text"])
    return said


def start(scene: Scene, text: str, said: list[str]) -> None:
    borrower = borrowing._Borrower("visits", scene.settings, borrowing.WarmUse(said.append))
    try:
        borrower.start({"text": text})
    finally:
        borrower.close()


def test_a_command_says_that_nothing_is_kept_and_where_to_look(
    scene: Scene, said: list[str]
) -> None:
    start(scene, "fail", said)
    log = scene.folder / "output.log"
    why = f"No Spark can be kept: it did not start, see {log}. This command starts its own."
    assert said == [why, "own"]
    assert scene.is_gone()


def test_the_folder_of_another_user_is_not_used(
    scene: Scene, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.folder.mkdir(parents=True)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    start(scene, "a", said)
    assert said[0].startswith(f"No Spark can be kept: {scene.folder} is not a folder of this user")
    assert said[1:] == ["own"]
    # nor what it leads to
    monkeypatch.setattr(os, "geteuid", lambda: user)
    elsewhere = scene.settings.home.parent / "elsewhere"
    scene.folder.rename(elsewhere)
    elsewhere.chmod(0o755)
    scene.folder.symlink_to(elsewhere)
    start(scene, "a", said)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    assert not list(elsewhere.iterdir())
