"""The files of deploy/: valid by schema, and each command in them is one of ours.

No image is built here: that needs a container engine.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer.main
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from ebbtide.cli import app
from ebbtide.errors import SECRET_NAMES
from ebbtide.runtime import java
from ebbtide.version import __version__
from tests.unit.deploy.operators import SCHEMAS, pods_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
RESOURCES: dict[str, dict[str, Any]] = {
    f"{file.name}-{resource['kind']}": resource
    for file in MANIFESTS
    for resource in yaml.safe_load_all(file.read_text())
}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OWN = {
    "ebbtide",
    "ebbtide-spark",
    "registry.example.com/ebbtide",
    "registry.example.com/ebbtide-spark",
}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their arguments, each on one line."""
    text = (DEPLOY / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name."""
    named: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            stage = named[rest.split(" AS ")[1]] = []
        stage.append((name, rest))
    return named


def parse(words: list[str]) -> None:
    """Parse a command line as `ebbtide` does, without running it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("ebbtide", list(words))
    while hasattr(command, "resolve_command"):
        words = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of ours in deploy/, and where it is."""
    for stage, lines in stages().items():
        for name, rest in lines:
            if name == "RUN":
                for part in rest.split("&&"):
                    words = shlex.split(part)
                    if words and words[0].rpartition("/")[2] == "ebbtide":
                        yield f"Dockerfile, {stage}", words[1:]
    for service, settings in SERVICES.items():
        words = settings.get("command", [])
        if settings["image"].startswith("ebbtide:") and "entrypoint" not in settings:
            yield f"compose.yaml, {service}", words
        elif words[:1] == ["ebbtide"]:
            yield f"compose.yaml, {service}", words[1:]
    for resource in RESOURCES.values():
        spec = resource.get("spec", {})
        for arguments in (spec.get("arguments"), spec.get("driverArgs")):
            if arguments:
                yield f"{resource['apiVersion']}", arguments
        for container in containers(resource):
            if "args" in container:
                yield f"kubernetes, {container['name']}", container["args"]


def containers(part: Any) -> Iterator[dict[str, Any]]:
    """Every container in a resource, however deep."""
    if isinstance(part, dict):
        yield from part.get("containers", ())
        for value in part.values():
            yield from containers(value)


def images(part: Any) -> Iterator[str]:
    """Every image that a file names."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name in ("image", "spark.kubernetes.container.image"):
                yield value
            else:
                yield from images(value)
    elif isinstance(part, list):
        for value in part:
            yield from images(value)


COMMANDS = list(commands())


def test_every_command_is_found() -> None:
    names = [words[0] for _, words in COMMANDS]
    assert sorted(set(names)) == ["--version", "apply", "generate", "run", "ui", "verify"]
    assert names.count("run") == 3


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[f"{w}: {c[0]}" for w, c in COMMANDS])
def test_a_command_parses(
    where: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del where
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if words == ["--version"]:
        with pytest.raises(typer.Exit):
            parse(words)
        return
    parse(words)
    with pytest.raises(Exception, match="No such option: --no-such-thing"):
        parse([*words, "--no-such-thing"])


def test_compose_is_valid() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    jsonschema.validate(COMPOSE, schema)
    with pytest.raises(jsonschema.ValidationError, match="imag"):
        jsonschema.validate({"services": {"kafka": {"imag": "x"}}}, schema)


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)
def test_a_manifest_is_valid(resource: dict[str, Any]) -> None:
    version = kubernetes_validate.latest_version()
    if resource["kind"] != "SparkApplication":
        kubernetes_validate.validate(resource, version, strict=True)
        return
    jsonschema.validate(resource, SCHEMAS[resource["apiVersion"]])
    for pod in pods_of(resource):
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)
def test_a_pod_has_few_rights(resource: dict[str, Any]) -> None:
    pods = pods_of(resource) if resource["kind"] == "SparkApplication" else [resource]
    found = [(pod, container) for pod in pods for container in containers(pod)]
    assert found or resource["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    for pod, container in found:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert '"runAsNonRoot": true' in json.dumps(pod)
        assert container["resources"]["limits"]
        assert {"/tmp", "/work"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_pod_starts_without_the_secret_that_may_be_left_out() -> None:
    found = re.findall(r"secretRef: (\{.*\})", "".join(file.read_text() for file in MANIFESTS))
    assert len(found) == 5
    assert {yaml.safe_load(each)["optional"] for each in found} == {True}


def test_our_services_have_few_rights() -> None:
    ours = [service for service in SERVICES.values() if service["image"].split(":")[0] in OWN]
    assert len(ours) == 6
    for service in ours:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_secrets_are_only_named() -> None:
    """No value of a secret is written down, but in the example that says to change it."""
    for file in (*MANIFESTS, DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"):
        for name, value in re.findall(r"([\w.-]+)[:=] *[\"']?([^\s\"',}]+)", file.read_text()):
            if SECRET_NAMES.fullmatch(name):
                assert value.startswith(("${", "{secretName:")), f"{file.name}: {name}"
    names = re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text())
    example = (DEPLOY / "example.env").read_text()
    assert set(names) == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_images_are_pinned() -> None:
    named = [*images(COMPOSE), *images(list(RESOURCES.values()))]
    named += [rest.split(" AS ")[0] for name, rest in instructions() if name == "FROM"]
    assert len(set(named)) >= 6
    for image in named:
        place, _, tag = image.rpartition(":")
        assert re.match(r"\d+\.\d+", tag), image
        if place in OWN:
            assert tag == __version__


def test_the_dockerfile_copies_what_exists() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                sent = [f"!{part}" for part in (source, *map(str, Path(source).parents))]
                assert set(sent) & set(ignored), f"{source} is not sent to the builder"
        if name == "COPY" and rest.startswith("--from="):
            assert rest.split()[0].removeprefix("--from=") in stages()


def test_the_dockerfile_installs_with_checksums() -> None:
    for name, rest in instructions():
        for part in rest.split("&&") if name == "RUN" else ():
            if "pip install" in part and "--no-deps" not in part:
                assert "--require-hashes" in part
                for file in re.findall(r"-r (\S+)", part):
                    assert "--hash=sha256:" in (ROOT / file).read_text()


@pytest.mark.parametrize(("target", "user"), [("light", "1000:1000"), ("spark", "185:185")])
def test_an_image_does_not_run_as_root(target: str, user: str) -> None:
    users = [rest for name, rest in stages()[target] if name == "USER"]
    assert users[-1] == user


def test_the_images_have_what_they_need() -> None:
    """Each is resolved as a whole: files that are resolved apart may contradict each other."""
    light, spark = (
        (ROOT / "requirements" / f"image-{n}.txt").read_text() for n in ("light", "spark")
    )
    for package in ("typer", "starlette", "s3fs", "gcsfs", "adlfs", "requests", "cryptography"):
        assert re.search(rf"^{package}==", light, re.MULTILINE), package
        assert re.search(rf"^{package}==", spark, re.MULTILINE), package
    assert "pyspark" not in light
    version = re.search(r"^pyspark==(\S+)", spark, re.MULTILINE)
    assert version is not None
    bases = [rest for name, rest in instructions() if name == "FROM" and "apache/spark" in rest]
    assert all(base.startswith(f"apache/spark:{version[1]}-") for base in bases)
    specs = [each["spec"] for each in RESOURCES.values() if each["kind"] == "SparkApplication"]
    named = [spec.get("sparkVersion") or spec["runtimeVersions"]["sparkVersion"] for spec in specs]
    assert set(named) == {version[1]}


def test_the_jars_are_baked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the image's build runs: afterwards nothing is left to download or to write."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    bake = importlib.import_module("bake")
    monkeypatch.setattr(bake, "SETS", ("spark",))  # every developer has these
    bake.main(tmp_path / "jars")
    baked = {path.name: path for path in (tmp_path / "jars").iterdir()}
    ours = java.own_jar_path().name
    assert {ours, *(jar.name for jar in java.jars("spark"))} == set(baked)
    assert all(path.is_file() for path in baked.values())
    assert (java.spark_java_home() / "bin" / "java").is_file()


def test_the_bucket_waits_for_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing listens yet, there is no answer, but no traceback either."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.syspath_prepend(str(DEPLOY))
    assert not importlib.import_module("bucket").create("lake")


def test_the_daemons_of_spark_get_their_options_as_two_words() -> None:
    """`--cores=1` makes a worker print its usage and exit."""
    daemons = {n: s["command"] for n, s in SERVICES.items() if "spark-class" in str(s)}
    assert daemons.keys() == {"spark-master", "spark-worker"}
    for words in daemons.values():
        assert not any("=" in word for word in words)


def test_java_can_load_what_it_unpacks() -> None:
    """Docker mounts a tmpfs without the right to execute, unless it is told otherwise."""
    for name, service in SERVICES.items():
        for mount in service.get("tmpfs", ()):
            folder, _, flags = mount.partition(":")
            assert folder != "/tmp" or "exec" in flags.split(","), name


def test_the_alerts_use_metrics_that_exist() -> None:
    served = set(
        re.findall(
            r"^\| `(ebbtide_\w+)`", (ROOT / "docs/production/metrics.md").read_text(), re.MULTILINE
        )
    )
    named = set(re.findall(r"ebbtide_[a-z_]+", (ROOT / "docs/production/index.md").read_text()))
    assert named
    assert named <= served
