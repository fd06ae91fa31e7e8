"""Compile Ebbtide's own Java classes once, with the compiler that Spark brings, into a jar."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo, is_zipfile

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from ebbtide.config import make_folder
from ebbtide.errors import SetupError, first_line
from ebbtide.runtime.java import JAVA_VARIABLES, SOURCES, find_java, own_jar_path
from ebbtide.runtime.versions import INSTALL, spark_home, spark_jars

_NEEDED = ("py4j-*.jar", "janino-*.jar")


def own_jar() -> Path:
    """The jar with our classes for the installed Spark, compiled if the cache lacks it."""
    jar = own_jar_path()
    if not is_zipfile(jar):
        make_folder(jar.parent, "EBBTIDE_CACHE")
        try:
            _compile(jar)
        except (OSError, ValueError, Py4JError) as error:
            reason = first_line(str(getattr(error, "java_exception", None) or error))
            raise SetupError(
                f"Ebbtide's Java classes cannot be compiled: {reason}.",
                "Type: ebbtide doctor",
            ) from None
    return jar


def _compile(jar: Path) -> None:
    """Compile the sources in a JVM of their own, which takes about a second."""
    needed = [path for name in _NEEDED for path in spark_jars(name)[:1]]
    if len(needed) < len(_NEEDED):
        raise SetupError(
            f"The Spark in {spark_home()} has no Janino or no Py4J, which compile Java classes.",
            f"Set SPARK_HOME to the folder of a whole Spark, or type: {INSTALL}",
        )
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-classes-") as folder,
        _open_jvm(needed[0].parent) as gateway,
    ):
        _run_janino(gateway, Path(folder))
        _pack(Path(folder, "classes"), jar)


@contextmanager
def _open_jvm(jars: Path) -> Iterator[JavaGateway]:
    """A JVM with a folder of jars, which ends with the block; only we have the token for it."""
    # what the user's variables make a JVM print would come before the port
    environ = {name: v for name, v in os.environ.items() if name not in JAVA_VARIABLES}
    words = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    java = find_java().executable
    with subprocess.Popen(
        [str(java), "-cp", str(jars / "*"), *words],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as jvm:
        assert jvm.stdout is not None
        try:
            port, token = (jvm.stdout.readline().strip() for _ in range(2))
            if not port.isdecimal():
                raise OSError(f"{java} starts no JVM")
            parameters = GatewayParameters(port=int(port), auth_token=token)
            gateway = JavaGateway(gateway_parameters=parameters)
            yield gateway
            gateway.close()
        finally:
            jvm.kill()  # it has nothing to lose


def _run_janino(gateway: JavaGateway, folder: Path) -> None:
    jvm: Any = gateway.jvm
    to_file = jvm.java.io.File
    texts = gateway.new_array(to_file, len(SOURCES))
    for number, source in enumerate(SOURCES):
        # a package may be in a zip file
        (folder / source.name).write_bytes(source.read_bytes())
        texts[number] = to_file(str(folder / source.name))
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    factories = jvm.org.codehaus.commons.compiler.CompilerFactoryFactory
    compiler = factories.getDefaultCompilerFactory(loader).newCompiler()
    compiler.setSourceCharset(jvm.java.nio.charset.StandardCharsets.UTF_8)
    compiler.setDestinationDirectory(to_file(str(folder / "classes")), False)
    compiler.compile(texts)


def _pack(folder: Path, jar: Path) -> None:
    """Write the classes into a jar, whole, and the same bytes each time."""
    # not by the process's id: containers that share a cache have the same ones
    descriptor, name = tempfile.mkstemp(dir=jar.parent, prefix=".ebbtide-", suffix=".tmp")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file, ZipFile(file, "w") as archive:
            for each in sorted(folder.rglob("*.class")):
                # the oldest time that a zip file can have
                entry = ZipInfo(each.relative_to(folder).as_posix())
                archive.writestr(entry, each.read_bytes())
        partial.chmod(0o644)  # a cache may be shared
        partial.replace(jar)
    finally:
        partial.unlink(missing_ok=True)
