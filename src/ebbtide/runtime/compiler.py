"""Compile Ebbtide's own Java classes once, with the compiler that Spark brings, into a jar."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from ebbtide.config import make_folder
from ebbtide.errors import SetupError
from ebbtide.runtime.java import SOURCES, find_java, own_jar_path
from ebbtide.runtime.versions import INSTALL, spark_home, spark_jars

_NEEDED = ("janino-*.jar", "py4j-*.jar")


def own_jar() -> Path:
    """The jar with our classes for the installed Spark, compiled if the cache lacks it."""
    jar = own_jar_path()
    if not jar.exists():
        make_folder(jar.parent, "EBBTIDE_CACHE")
        _compile(jar)
    return jar


def _compile(jar: Path) -> None:
    """Compile the sources in a JVM of their own, which takes about a second."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    needed = [path for name in _NEEDED for path in spark_jars(name)[:1]]
    if len(needed) < len(_NEEDED):
        raise SetupError(
            f"The Spark in {spark_home()} has no Janino or no Py4J, which compile Java classes.",
            f"Set SPARK_HOME to the folder of a whole Spark, or type: {INSTALL}",
        )
    port = launch_gateway(
        jarpath=str(needed[1]),
        classpath=str(needed[0].parent / "*"),
        java_path=str(find_java().executable),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        with tempfile.TemporaryDirectory(prefix="ebbtide-classes-") as folder:
            _run_janino(gateway, Path(folder))
            _pack(Path(folder, "classes"), jar)
    finally:
        gateway.shutdown()


def _run_janino(gateway: object, folder: Path) -> None:
    from py4j.java_gateway import JavaGateway

    assert isinstance(gateway, JavaGateway)
    jvm = gateway.jvm
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
    partial = jar.with_name(f".{jar.name}.{os.getpid()}.tmp")
    with ZipFile(partial, "w") as archive:
        for file in sorted(folder.rglob("*.class")):
            # the oldest time that a zip file can have
            archive.writestr(ZipInfo(str(file.relative_to(folder))), file.read_bytes())
    partial.replace(jar)
