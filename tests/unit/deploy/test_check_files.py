"""The GitHub Action and the pre-commit hook that call `ebbtide check`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from tests.unit.deploy.test_deploy import parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "deploy/check/action.yml").read_text("utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
STEPS = ACTION["runs"]["steps"]


def test_the_action_is_valid() -> None:
    schema = get_builtin_schema("vendor.github-actions")
    jsonschema.validate(ACTION, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**ACTION, "runs": {"using": "composite"}}, schema)


def test_the_action_uses_each_input_and_none_in_a_script() -> None:
    """An input in a script would be run: `env` passes it as a value."""
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert not any("${{" in script for script in scripts)
    passed = {value for step in STEPS for value in step.get("env", {}).values()}
    assert passed == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}


@pytest.mark.parametrize(("extras", "listed"), [("", "spark"), ("s3,gcs", "spark,s3,gcs")])
def test_the_action_installs_its_own_checkout(tmp_path: Path, extras: str, listed: str) -> None:
    """A package index may hold another package of that name."""
    fake = tmp_path / "pip"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/words"\n')
    fake.chmod(0o755)
    (script,) = (step["run"] for step in STEPS if "pip install" in step.get("run", ""))
    action = ROOT / "deploy/check"
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(action),
            "EXTRAS": extras,
            "PYSPARK": "4.2.*",
            "REQUIREMENTS": "",
        },
        check=True,
    )
    word, place, pyspark = (tmp_path / "words").read_text().splitlines()
    assert (word, pyspark) == ("install", "pyspark==4.2.*")
    folder, _, names = place.partition("[")
    assert (Path(folder) / "pyproject.toml").samefile(ROOT / "pyproject.toml")
    assert names == f"{listed}]"
    assert set(listed.split(",")) <= set(EXTRAS)


@pytest.mark.parametrize("code", [0, 1])
def test_the_action_ends_as_the_check_does(tmp_path: Path, code: int) -> None:
    fake = tmp_path / "ebbtide"
    fake.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/words"\necho {{}}\nexit {code}\n')
    fake.chmod(0o755)
    (script,) = (step["run"] for step in STEPS if step.get("id") == "check")
    answer = subprocess.run(
        # as GitHub runs `shell: bash`
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "CHECKPOINT": "a b",
            "QUERY": "j.py:b",
        },
        check=False,
    )
    assert answer.returncode == code
    assert (tmp_path / "words").read_text() == "check a b j.py:b -o json\n"
    report = (tmp_path / "output").read_text().strip().partition("=")[2]
    assert Path(report).read_text() == "{}\n"
    parse(["check", "a b", "j.py:b", "-o", "json"])


def test_the_hook_is_a_command_of_ours() -> None:
    program, *words = HOOK["entry"].split()
    assert program == "ebbtide"
    parse([*words, "checkpoint", "job.py:build"])
    assert HOOK["language"] == "python"
    assert HOOK["pass_filenames"] is False
    assert set(HOOK["stages"]) <= {"pre-commit", "pre-push", "manual"}


def test_the_hook_installs_the_extra_spark() -> None:
    installed = [line for line in HOOK["additional_dependencies"] if "pyspark" not in line]
    assert installed == [line for line in EXTRAS["spark"] if "pyspark" not in line]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_action_warns_before_the_first_deploy(tmp_path: Path, allowed: bool) -> None:
    fake = tmp_path / "ebbtide"
    report = '{"parts": [{"part": "checkpoint"}]}'
    fake.write_text(f"#!/bin/sh\necho \"$@\" > '{tmp_path}/words'\necho '{report}'\n")
    fake.chmod(0o755)
    (script,) = (step["run"] for step in STEPS if step.get("id") == "check")
    answer = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "CHECKPOINT": "new",
            "QUERY": "j.py:b",
            "ALLOW_MISSING": str(allowed).lower(),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("--allow-missing" in (tmp_path / "words").read_text()) is allowed
    assert "::warning" in answer.stdout
