"""Walk Spark's plans through py4j: sources, watermarks, windows, where columns come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError

from ebbtide.compatibility.planned import Column, TimeWindow, parse_window
from ebbtide.connectors import streams

_PYTHON = re.compile(r"(?:PythonUDF|ScalaUDF|UDF|MapInPandas|MapInArrow|FlatMapGroups)")
_COMPUTED = "computed"


def items(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def walk(plan: Any) -> Iterator[Any]:
    """Every node, a parent before its children: the order in which Spark numbers operators."""
    yield plan
    for child in items(plan.children()):
        yield from walk(child)


def private_field(owner: Any, name: str) -> Any:
    """A field that Spark does not show, by Java's reflection; Scala may lengthen its name."""
    for field in owner.getClass().getDeclaredFields():
        if str(field.getName()).rpartition("$")[2] == name:
            field.setAccessible(True)
            return field.get(owner)
    raise AttributeError(name)


def class_of(node: Any) -> str:
    """The simple name of a node's class."""
    return str(node.getClass().getSimpleName())


def find_sources(plan: Any) -> list[streams.StreamRead]:
    """What an analyzed plan reads, in Spark's order."""
    found: list[tuple[Any, streams.StreamRead]] = []
    unnamed = 0
    for node in walk(plan):
        if class_of(node) == "StreamingRelation":
            pairs = [(pair._1(), pair._2()) for pair in items(node.dataSource().options().toSeq())]
        elif class_of(node) == "StreamingRelationV2":
            options = node.extraOptions()
            pairs = [(name, options.get(name)) for name in options.keySet().toArray()]
        else:
            continue
        given = {str(name): str(value) for name, value in pairs}
        read = streams.recognize_read(str(node.sourceName()), given)
        called = _source_name(node)
        # Spark opens a relation once, however often the plan has it
        folder = next((earlier.folder for one, earlier in found if one.equals(node)), "")
        if not folder:
            folder = called or str(unnamed)
            unnamed += not called
        found.append((node, replace(read, called=called, folder=folder)))
    return [read for _, read in found]


def _source_name(node: Any) -> str:
    """The name that a query gives a source; versions before 4.2 know none."""
    with suppress(Py4JError, TypeError):
        name = node.sourceIdentifyingName().nameOpt()
        return str(name.get()) if name.isDefined() else ""
    return ""


def find_watermarks(jvm: Any, plan: Any) -> dict[str, int]:
    """The watermarks of an analyzed plan: their delays in milliseconds, by column."""
    helper = _module(jvm, "org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark")
    return {
        str(node.eventTime().name()): int(helper.getDelayMs(node.delay()))
        for node in walk(plan)
        if class_of(node) == "EventTimeWatermark"
    }


def _module(jvm: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")


class Lineage:
    """Where the columns of an analyzed plan come from."""

    def __init__(self, plan: Any) -> None:
        self._parents: dict[int, int | str] = {}
        self._windows: dict[int, TimeWindow] = {}
        self._uses: dict[int, dict[int, str]] = {}
        self.columns: set[str] = set()
        self.key_choices: set[str] = set()
        self.functions: set[str] = set()
        for node in walk(plan):
            self._add(node)

    def _add(self, node: Any) -> None:
        kind = class_of(node)
        if kind.startswith("StreamingRelation"):
            for attribute in items(node.output()):
                self._parents[_id(attribute)] = str(attribute.name())
                self.columns.add(str(attribute.name()))
        if kind in ("Aggregate", "Deduplicate") and node.isStreaming():
            self.key_choices |= {str(each.name()) for each in items(node.child().output())}
        if kind in ("Project", "Aggregate"):
            named = node.projectList() if kind == "Project" else node.aggregateExpressions()
            for expression in items(named):
                if class_of(expression) == "Alias":
                    self._add_alias(expression)
        elif kind == "Expand":
            self._add_expand(node)
        elif _PYTHON.search(kind) or kind.startswith("TransformWithState"):
            self.functions.add(kind)

    def _add_alias(self, alias: Any) -> None:
        child, text = alias.child(), str(alias.toString())
        used = items(child.references().toSeq())
        self._uses[_id(alias)] = {_id(each): str(each.name()) for each in used}
        simple = class_of(child) == "AttributeReference"
        self._parents[_id(alias)] = _id(child) if simple else _COMPUTED
        if _PYTHON.search(text):
            self.functions.add(str(alias.name()))
        if (window := parse_window(text)) is not None:
            self._windows[_id(alias)] = window

    def _add_expand(self, node: Any) -> None:
        """Sliding windows: each row goes to several."""
        first = items(items(node.projections())[0])
        for attribute, expression in zip(items(node.output()), first, strict=False):
            if (window := parse_window(str(expression.toString()))) is not None:
                self._windows[_id(attribute)] = window

    def resolve(self, attribute: Any) -> Column:
        """Which column of a source an attribute is."""
        name, parent = str(attribute.name()), self._parents.get(_id(attribute))
        seen: set[int] = set()
        while isinstance(parent, int) and parent not in seen:
            seen.add(parent)
            parent = self._parents.get(parent)
        # the optimizer has columns of its own, of which the plan does not show what they are
        made_of = {_id(attribute): name} if _id(attribute) in self._parents else {}
        for _ in range(len(self._uses)):
            found = {k: v for id_ in made_of for k, v in self._uses.get(id_, {}).items()}
            if found.keys() <= made_of.keys():
                break
            made_of |= found
        origin = parent if isinstance(parent, str) and parent != _COMPUTED else None
        return Column(name, origin, frozenset(made_of.values()))

    def window_of(self, attribute: Any) -> TimeWindow | None:
        """The window that an attribute holds."""
        id_: int | str | None = _id(attribute)
        while isinstance(id_, int):
            if id_ in self._windows:
                return self._windows[id_]
            id_ = self._parents.get(id_)
        return None

    @property
    def windows(self) -> list[TimeWindow]:
        """All windows of the plan."""
        return list(self._windows.values())


def _id(expression: Any) -> int:
    return int(expression.exprId().id())


def key_attributes(operator: Any) -> list[Any]:
    """The attributes that make up the key of a physical operator, and of a join also its rows."""
    for name in ("keyExpressions", "keyWithoutSessionExpressions", "groupingAttributes"):
        with suppress(Py4JError, TypeError):
            return [each for each in items(getattr(operator, name)()) if _is_named(each)]
    with suppress(Py4JError, TypeError):
        rows = items(operator.left().output()) + items(operator.right().output())
        return [each for each in rows if _is_named(each)]
    return []


def _is_named(expression: Any) -> bool:
    return class_of(expression) == "AttributeReference"
