"""Write the reference pages from the code: commands, Python names, and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from typer.main import get_command

import ebbtide
from ebbtide.cli import app
from scripts import schemas

_FIRST = "Options"
"""The title of options that are in no panel."""
_RESULTS = (
    "checkpoint.Checkpoint",
    "rewind.plan.RewindPlan",
    "checks.Check",
    "checkpoint.journal.Backup",
    "connectors.sources.QueryPosition",
    "rewind.fork.Fork",
    "compatibility.verdicts.CompatibilityReport",
    "replaying.run.ReplayResult",
    "replaying.verdicts.ReplayVerdict",
    "runtime.stream.StreamResult",
    "runtime.stream.BatchReport",
    "attaching.attachment.Attachment",
    "config.Settings",
)
"""What functions of the API take or return, beside pipelines."""
_MEMBERS = {
    "ebbtide.checkpoint.Checkpoint": ("location", "logs", "oldest_restorable", "restorable"),
    "ebbtide.pipeline.Pipeline": tuple(field.name for field in fields(ebbtide.Pipeline)),
}
"""What is public of classes that have more; of the others, everything."""
_TESTING = ("Rehearsal", "RehearsedBatch", "Crash", "run_batch", "local_session")


def list_commands() -> dict[str, Any]:
    """Every command by the words that are typed, in the order of the help."""
    return dict(_walk(get_command(app), "ebbtide"))


def _walk(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from _walk(inner, f"{words} {name}")


def render_commands() -> str:
    """The reference of the command line, as Markdown: a section for each panel of the help."""
    panels: dict[str, list[str]] = {}
    root: Any = get_command(app)
    for words, command in list_commands().items():
        top = root.commands[words.split()[1]]
        panels.setdefault(top.rich_help_panel, []).append(_render(words, command))
    return "\n\n".join(part for panel, texts in panels.items() for part in (f"## {panel}", *texts))


def _render(words: str, command: Any) -> str:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options: dict[str, list[Any]] = {_FIRST: []}
    for each in shown:
        if each not in arguments and each.name != "help":
            options.setdefault(each.rich_help_panel or _FIRST, []).append(each)
    usage = " ".join([words, *map(_argument, arguments), *["[OPTIONS]"][: len(shown) > 0]])
    summary, *rest = (command.help or "").split("\n\n")
    parts = [f"### {words}", _flow(summary), f"```text\n{usage}\n```", *map(_flow, rest)]
    if arguments:
        rows = (f"| `{each.metavar}` | {_cell(each.help)} |" for each in arguments)
        parts.append("\n".join(["| argument | |", "|---|---|", *rows]))
    for panel, members in options.items():
        if members:
            rows = (f"| {_option(each)} | {_default(each)} | {_help(each)} |" for each in members)
            parts.append("\n".join([f"| {panel.lower()} | default | |", "|---|---|---|", *rows]))
    parts.append("\n".join(["```text", *_examples(command), "```"]))
    return "\n\n".join(parts)


def _argument(argument: Any) -> str:
    many = "…" if argument.nargs != 1 or argument.multiple else ""
    name = f"{argument.metavar}{many}"
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    metavar = f" {option.metavar}" if option.metavar else ""
    return _cell(", ".join(f"`{name}{metavar}`" for name in names))


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default() if callable(option.default) else option.default
    # a zero counts: it is equal to False
    return "" if value is None or value is False or value == [] else f"`{value}`"


def _help(option: Any) -> str:
    return _cell(option.help or "")


def _examples(command: Any) -> list[str]:
    """The examples of a command, a continued line as one.

    >>> _examples(list_commands()["ebbtide jobs"])
    ['$ ebbtide jobs']
    """
    text = re.sub(r"\[/?bold\]", "", command.epilog or "").replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in text.splitlines()[1:])
    return [line for line in lines if line]


def _flow(text: str) -> str:
    """A paragraph of help as one of Markdown."""
    return _markdown(" ".join(text.split()))


def _cell(text: str) -> str:
    return _markdown(" ".join(text.split())).replace("|", r"\|")


def _markdown(text: str) -> str:
    """Plain text as Markdown: what looks like a tag is text, and a flag is code.

    >>> _markdown("checkpoints/<name> in --home, `a<b`")
    'checkpoints/&lt;name> in `--home`, `a<b`'
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escape(part) for part in parts)


def _escape(text: str) -> str:
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*[a-z]", r"`\g<0>`", text.replace("<", "&lt;"))


def render_python() -> str:
    """The directives by which mkdocstrings renders the public names."""
    return "\n\n".join(
        part
        for title, names in list_names().items()
        for part in (f"## {title}", *map(_directive, names))
    )


def _directive(name: str) -> str:
    if name not in _MEMBERS:
        return f"::: {name}"
    members = ", ".join(_MEMBERS[name])
    return f"::: {name}\n    options:\n      members: [{members}]"


def list_names() -> dict[str, list[str]]:
    """The public names of the Python API, by the title of their section."""
    verbs = [name for name in ebbtide.__all__ if name.islower()]
    values = [name for name in ebbtide.__all__ if not name.islower()]
    return {
        "Functions": [f"ebbtide.api.{name}" for name in verbs],
        "Pipelines": [f"ebbtide.pipeline.{n}" for n in values if n != "EbbtideError"],
        "Errors": ["ebbtide.errors.EbbtideError"],
        "Results": [f"ebbtide.{name}" for name in _RESULTS],
        "Testing": [f"ebbtide.testing.{name}" for name in _TESTING],
    }


def render_schemas() -> str:
    """A section for each JSON Schema: which command prints it, and its fields."""
    return "\n\n".join(_render_schema(name) for name in schemas.SCHEMAS)


def _render_schema(name: str) -> str:
    title, make = schemas.SCHEMAS[name]
    schema, kind = make(), "An object"
    if schema["type"] == "array":
        schema, kind = schema["items"], "A list of objects"
    rows = (
        f"| `{field}` | {_type_name(its)} | {_cell(its.get('description', ''))} |"
        for field, its in schema["properties"].items()
    )
    link = f"[`{name}.json`](schemas/{name}.json)"
    head = [f"## {name}", f"{kind}, printed by `{title}`. Schema: {link}."]
    return "\n\n".join([*head, "\n".join(["| field | type | |", "|---|---|---|", *rows])])


def _type_name(schema: dict[str, Any]) -> str:
    """The type of a field in a word or two.

    >>> _type_name({"type": ["string", "null"]}), _type_name({"enum": ["exact", "replan"]})
    ('string or null', '`exact` or `replan`')
    """
    match schema:
        case {"type": "array", "items": items}:
            return f"list of {_type_name(items)}"
        case {"type": list(names)}:
            return " or ".join(names)
        case {"type": str(name)}:
            return name
        case {"anyOf": options}:
            return " or ".join(map(_type_name, options))
        case {"enum": values}:
            return " or ".join(f"`{'null' if value is None else value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
    return "any"
