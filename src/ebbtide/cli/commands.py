"""Declare commands: their options, groups of options, and examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import wraps
from textwrap import wrap
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from ebbtide.credentials import take_credentials
from ebbtide.errors import mask

Command = Callable[..., None]
EPILOGS: dict[Command, str] = {}
_EXAMPLE_WIDTH = 74


def command(*examples: str) -> Callable[[Command], Command]:
    """Declare a command and the examples that its help shows.

    A parameter whose type is a dataclass of options stands for all of them: on the command line
    each is an option, in the help panel that the class names as its `panel`, and the function
    gets one value. Every command accepts --home, --bootstrap-servers and
    --kafka-config, so that scripts can add them everywhere; one that does not name them
    ignores them.

    >>> from ebbtide.cli.options import HomeOptions
    >>> @command("ebbtide show")
    ... def show(environment: HomeOptions, all_rows: bool = False) -> None:
    ...     print(environment.settings.home)
    >>> show(home="there")
    there
    """

    def declare(function: Command) -> Command:
        parameters = inspect.signature(function, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)
        }
        options = {name: p for name, p in parameters.items() if name not in groups}
        members = {name: _list_members(group) for name, group in groups.items()}
        for group in members.values():
            options |= group
        ignored = {name: p for name, p in _EVERYWHERE.items() if name not in options}

        @wraps(function)
        def run(**values: Any) -> None:
            values = {n: _without_credentials(v) for n, v in values.items() if n not in ignored}
            for name, group in members.items():
                values[name] = groups[name](**{o: values.pop(o) for o in group if o in values})
            function(**values)

        keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in {**options, **ignored}.values()]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in keywords}
        EPILOGS[run] = _epilog(*examples)
        return run

    return declare


def _without_credentials(value: Any) -> Any:
    """A value as typed; of a URL, what may be shown and saved."""
    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    return take_credentials(value) if isinstance(value, str) else value


def _list_members(group: Any) -> Mapping[str, inspect.Parameter]:
    members = inspect.signature(group, eval_str=True).parameters
    for member in members.values():
        info = member.default
        info.rich_help_panel = info.rich_help_panel or getattr(group, "panel", None)
    return members


@contextmanager
def _masked() -> Iterator[None]:
    """Mask the passwords of URLs in the errors of Typer."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = _plain(mask(message))  # type: ignore[attr-defined]
        raise


_TYPED = {
    "Input should be a valid integer, unable to parse string as an integer": "It takes a whole "
    "number, such as 5.",
    "Input should be a valid number, unable to parse string as a number": "It takes a number.",
}


def _plain(message: str) -> str:
    """What Typer says of a wrong value, in plain words.

    >>> _plain("Value error, 'xml' is not one of 'table', 'json'.")
    "'xml' is not one of 'table', 'json'."
    """
    return _TYPED.get(message, message.removeprefix("Value error, "))


def _show_plainly(argument: Any) -> None:
    argument.display_type_rich = lambda **_: None
    if argument.required and argument.nargs == 1:
        argument.get_usage_pieces = lambda *_: [argument.metavar]


class _Plain:
    """A command whose help shows no types of Python, and whose errors no secret."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; an argument is shown as `CKPT`, not as `{CKPT}` and `CKPT <str>`."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument):
                _show_plainly(param)
        return params

    def get_help_option(self, ctx: Any) -> Any:
        help_option = super().get_help_option(ctx)  # type: ignore[misc]
        if help_option is not None:
            help_option.metavar = ""
        return help_option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; what Typer says of wrong ones has no password."""
        with _masked():
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]


class PlainCommand(_Plain, TyperCommand):
    """A command of ours."""


class PlainGroup(_Plain, TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; a URL where one is expected is shown without its password."""
        with _masked():
            return super().resolve_command(ctx, args)


def _epilog(*lines: str) -> str:
    """Format examples; a long one is continued on the next line, as a shell reads it.

    >>> print(_epilog("ebbtide jobs"))
    [bold]Example[/bold]
      $ ebbtide jobs
    """
    folded = [
        wrap(line, _EXAMPLE_WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines
    ]
    return "\n".join(["[bold]Example[/bold]", *("  $ " + " \\\n      ".join(f) for f in folded)])


def option(
    usage: str, text: str, default: Any = None, *, panel: str | None = None, **rest: Any
) -> Any:
    """Describe an option by the way it is typed: `--port N`, or `-y --yes` for a switch.

    It is the default value of a parameter. A switch is off by default, and `...` means required.
    The text gets the room that Typer would give to types and ranges: a switch shows no `<bool>`,
    and `min` and `max` are checked, but not shown.
    """
    if "min" in rest:
        rest["callback"] = _require_range(rest.pop("min"), rest.pop("max", None))
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(word for word in words if word not in names)
    if not metavar and default is None:
        default = False
    return typer.Option(default, *names, metavar=metavar, help=text, rich_help_panel=panel, **rest)


def _require_range(least: int, most: int | None) -> Callable[[int | None], int | None]:
    limits = f"It must be at least {least}"
    limits += "." if most is None else f" and at most {most}."

    def check(value: int | None) -> int | None:
        if value is not None and (value < least or (most is not None and value > most)):
            raise typer.BadParameter(f"{value} is out of range. {limits}")
        return value

    return check


def argument(metavar: str, text: str, default: Any = ..., **rest: Any) -> Any:
    """Describe an argument, as `option` describes an option; required unless it has a default."""
    return typer.Argument(default, metavar=metavar, help=text, **rest)


_EVERYWHERE = {
    name: inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option(f"--{name.replace('_', '-')} X", "", hidden=True),
        annotation=str | None,
    )
    for name in ("home", "bootstrap_servers", "kafka_config")
}
