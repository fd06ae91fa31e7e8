"""The ready jobs and demos by name, and how to find a pipeline."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, MissingExtraError, UsageError, first_line
from ebbtide.pipeline import Pipeline

READY = {
    "visits-windows-counter": "ebbtide.systems.stream_reprocessor.pipeline:pipeline",
    "visits-counter": "ebbtide.systems.batch_reprocessor.pipeline:pipeline",
    "visits-early-writer": "ebbtide.systems.early_writer.pipeline:pipeline",
    "visits-micro-batch": "ebbtide.systems.micro_batch.pipeline:pipeline",
    "browser-stats-stateless": "ebbtide.systems.browser_stats.pipeline:stateless",
    "browser-stats-stateful": "ebbtide.systems.browser_stats.pipeline:stateful",
}
_MAKES_NAMES = frozenset(
    "__dict__ __getattr__ __globals__ eval exec globals locals setattr vars".split()  # noqa: SIM905
)
"""With one of these words, a file may define a name that does not occur in it."""
DEMOS = {
    "stream-reprocessor": "ebbtide.systems.stream_reprocessor.demo:play",
    "batch-reprocessor": "ebbtide.systems.batch_reprocessor.demo:play",
    "micro-batch": "ebbtide.systems.micro_batch.demo:play",
    "browser-stats": "ebbtide.systems.browser_stats.demo:play",
    "early-writer": "ebbtide.systems.early_writer.demo:play",
}


def play_demo(name: str, settings: Settings, *, to_stderr: bool) -> dict[str, object]:
    """Play a demo and return what it read; it tells what it does on stdout or on stderr."""
    from ebbtide.systems.harness import Narrator

    result: dict[str, object] = resolve_name(DEMOS[name])(settings, Narrator(to_stderr=to_stderr))
    return result


def find_pipeline(reference: str) -> Pipeline:
    """The pipeline that a ready job's name, `module:attr` or `path.py:attr` refers to."""
    if ":" not in reference:
        _require_ready(reference)
        reference = READY[reference]
    where, attribute = reference.rsplit(":", 1)
    module = _load(where)
    pipeline = getattr(module, attribute, None)
    if not isinstance(pipeline, Pipeline):
        names = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        raise UsageError(
            f"{where} has no Pipeline named {attribute!r}.",
            f"It has: {', '.join(names)}." if names else "It has none.",
        )
    return pipeline


def _require_ready(name: str) -> None:
    """Refuse a name that no job has."""
    if name in READY:
        return
    similar = get_close_matches(name, READY, 1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    raise UsageError(
        f"There is no job {name!r}.{hint} Ready jobs: {', '.join(READY)}.",
        "Name your own as module:attr or path.py:attr.",
    )


def names_pipeline(reference: str) -> bool:
    """Whether a text refers to a pipeline, rather than to a place such as a checkpoint.

    A ready job's name wins over a folder of that name, and `module:attr` over one with a colon in
    its name; `./` in front of either makes it a path.

    >>> [names_pipeline(text) for text in ("visits-counter", "jobs.visits:clicks", "../j.py:c")]
    [True, True, True]
    >>> [names_pipeline(text) for text in ("s3://lake/c", "hdfs:/c", "./visits-counter", "/c:1")]
    [False, False, False, False]
    """
    if ":" not in reference:
        return reference in READY
    where, attribute = reference.rsplit(":", 1)
    is_module = all(part.isidentifier() for part in where.split("."))
    return attribute.isidentifier() and (where.endswith(".py") or is_module)


def find_query(reference: str) -> Pipeline | Callable[..., Any]:
    """The pipeline, or the function that builds a query, to which a reference refers.

    >>> find_query("job.py")
    Traceback (most recent call last):
    ebbtide.errors.UsageError: job.py names no function and no pipeline. Write it as job.py:build
    """
    require_reference(reference)
    if ":" not in reference:
        return find_pipeline(reference)
    where, attribute = reference.rsplit(":", 1)
    try:
        module = _load(where)
    except EbbtideError:
        raise
    except SystemExit:
        raise UsageError(
            f"{where} ends the program when it is imported.", "Call sys.exit() only as a script."
        ) from None
    except Exception as error:
        kind = type(error).__name__
        raise UsageError(
            f"{where} cannot be imported: {kind}: {first_line(error)}.", "Fix it first."
        ) from None
    found = getattr(module, attribute, None)
    if isinstance(found, Pipeline) or callable(found):
        return found
    own = (name for name, value in vars(module).items() if _is_query(value, module.__name__))
    raise _no_query(where, attribute, own)


def find_code(query: Pipeline | Callable[..., Any] | str) -> Pipeline | Callable[[], Any]:
    """A pipeline, or what loads the function that builds a query when there is a session.

    A script may want a Spark session when it is imported.
    """
    if isinstance(query, str) and _defines_function(query):
        return partial(find_query, query)
    code = find_query(query) if isinstance(query, str) else query
    return code if isinstance(code, Pipeline) else lambda: code


def _defines_function(reference: str) -> bool:
    """Whether a reference's own file defines a function of that name; nothing is imported."""
    where, _, attribute = reference.rpartition(":")
    if not where.endswith(".py"):
        return False
    require_reference(reference)
    for each in ast.parse(Path(where).read_bytes()).body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == attribute:
                return True
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()) if name == attribute:
                return True
    return False


def require_reference(reference: str) -> None:
    """Refuse a reference that leads nowhere, as far as that shows before Spark starts.

    A module may be in one of the files that Spark brings along (`spark.submit.pyFiles`).
    """
    where, colon, attribute = reference.rpartition(":")
    if attribute.endswith(".py") or (colon and where and not attribute):
        file = where or attribute
        raise UsageError(
            f"{reference} names no function and no pipeline.", f"Write it as {file}:build"
        )
    if colon and not where:
        raise UsageError(f"{reference} names no file.", f"Write it as path/to/file.py{reference}")
    if not colon:
        _require_ready(reference)
    elif where.endswith(".py"):
        _require_attribute(where, attribute)


def _require_attribute(file: str, attribute: str) -> None:
    """Refuse what is no Python file, and a name that does not occur in it."""
    if not Path(file).is_file():
        raise UsageError(f"There is no file {file}.", "Name it as path/to/file.py:build")
    source = Path(file).read_bytes()
    try:
        tree = ast.parse(source, file)
        compile(tree, file, "exec")
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file} is not Python: {first_line(error)}.", "Fix it first.") from None
    text = importlib.util.decode_source(source)
    words = set(re.findall(r"\w+", text))
    if not (attribute in words or words & _MAKES_NAMES or re.search(r"import\s*\*", text)):
        raise _no_query(file, attribute, _list_names(tree))


def _list_names(tree: ast.Module) -> Iterator[str]:
    r"""What a file defines that may be a function or a pipeline.

    >>> list(_list_names(ast.parse("def build(spark): ...\nvisits = Pipeline()\nlimit = 3")))
    ['build', 'visits']
    """
    for each in tree.body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() | ast.Lambda()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() | ast.Lambda()):
                yield name


def _no_query(where: str, attribute: str, names: Iterable[str]) -> UsageError:
    listed = ", ".join(names)
    return UsageError(
        f"{where} has no function and no Pipeline named {attribute!r}.",
        f"It has: {listed}." if listed else "It has neither.",
    )


def _is_query(value: object, module: str) -> bool:
    """Whether a module may have defined it as a query."""
    own = isinstance(value, FunctionType) and value.__module__ == module
    return own or isinstance(value, Pipeline)


def _load(where: str) -> ModuleType:
    try:
        return _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    except Exception as error:
        if "SESSION_OR_CONTEXT_NOT_EXISTS" not in str(error):
            raise
        raise UsageError(
            f"{where} needs a Spark session when it is imported, before there is one.",
            'Write types as objects, @udf(IntegerType()) for @udf("int"), or move it into '
            "the transform.",
        ) from None


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "pyspark":
            raise MissingExtraError.for_extra("spark", f"Pipeline module {name}") from None
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise UsageError(
            f"There is no module {name!r}.", "Name a file instead: path/to/file.py:attr"
        ) from None
    finally:
        sys.path.pop(0)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.", "Name it as path/to/file.py:attr")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.absolute()))
    spec.loader.exec_module(module)
    with suppress(ImportError):
        from pyspark.cloudpickle import register_pickle_by_value

        # Python workers cannot import the file, so what it defines is sent to them
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module
