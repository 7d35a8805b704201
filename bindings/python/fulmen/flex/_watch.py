"""Whether functions still refer to the same objects: a comparison of identities, for functions that
were read once.

Objects that can change are watched only where that shows: functions by what they refer to, tensors
by what they are. A tensor may be another one each time, as no weak reference is kept of it either.
Lists, dicts and objects of other kinds are not watched."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fulmen._numbers import is_of_torch
from fulmen.flex._leaves import PLAIN, contents, is_unchanging, names_of, reaches_more

_ABSENT = object()


class _NotWatched(Exception):
    """A function refers to something whose changes would not be seen."""


def _values(one: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """All that a function or a partial one refers to, in an order that stays."""
    if isinstance(one, functools.partial):
        yield one.func
        yield from one.args
        yield from one.keywords.values()
        return
    yield one.__code__
    yield from contents(one)
    yield from one.__defaults__ or ()
    yield from (one.__kwdefaults__ or {}).values()
    for name in names:
        yield one.__globals__.get(name, _ABSENT)


def _words(one: Any) -> tuple[Any, ...]:
    """Names of keywords, how many values have none, and names of attributes."""
    if isinstance(one, functools.partial):
        return (*one.keywords, len(one.args), *one.__dict__)
    return (*(one.__kwdefaults__ or ()), len(one.__defaults__ or ()), *one.__dict__)


def _stays(value: Any) -> bool:
    """Whether an object's identity says all of it."""
    if type(value) is tuple:
        return all(isinstance(one, PLAIN) for one in value)
    plain = value is _ABSENT or isinstance(value, (*PLAIN, types.CodeType))
    return plain or is_unchanging(value)


class Watch:
    """Functions, as they are when it is made. It keeps neither them nor tensors alive."""

    def __init__(self, *functions: Any) -> None:
        # Called when one of the functions is gone.
        self.forget: Callable[[], Any] | None = None
        self._gone = False
        self._kept: list[Any] = []
        # Functions in the order in which they are reached, their global names and other words.
        self._functions: list[tuple[weakref.ref[Any], tuple[str, ...], tuple[Any, ...]]] = []
        self._seen: set[int] = set()
        for one in functions:
            self._add(one)
        self._state = self._now([])

    def tensors(self) -> list[Any] | None:
        """Those that the functions refer to, each once; None where anything else has changed."""
        found: list[Any] = []
        return found if self._now(found) == self._state else None

    def _now(self, tensors: list[Any]) -> list[Any] | None:
        if self._gone:
            return None
        state: list[Any] = []
        numbers: dict[int, int] = {}
        for ref, names, words in self._functions:
            function = ref()
            if function is None or _words(function) != words:
                return None
            for one in _values(function, names):
                if not is_of_torch(one):
                    state.append(id(one))
                    continue
                number = numbers.setdefault(id(one), len(tensors))
                if number == len(tensors):
                    tensors.append(one)
                state.append((number, one.__class__, one.shape, one.dtype, one.device))
        return state

    def _refer(self, value: Any) -> weakref.ref[Any]:
        watch = weakref.ref(self)

        def gone(_: Any) -> None:
            # Its address may be another object's from now on.
            mine = watch()
            if mine is not None:
                mine._gone = True
                if mine.forget is not None:
                    mine.forget()

        return weakref.ref(value, gone)

    def _add(self, value: Any) -> None:
        if _stays(value):
            self._kept.append(value)
        elif id(value) in self._seen:
            return
        elif isinstance(value, types.FunctionType | functools.partial):
            is_function = isinstance(value, types.FunctionType)
            # Attributes may hold anything.
            if value.__dict__ or (is_function and reaches_more(value.__code__)):
                raise _NotWatched
            self._seen.add(id(value))
            names = names_of(value) if is_function else ()
            self._functions.append((self._refer(value), names, _words(value)))
            for one in _values(value, names):
                self._add(one)
        elif not is_of_torch(value):
            raise _NotWatched


def watched(*functions: Callable[..., Any] | None) -> Watch | None:
    """A watch of functions, or None where it would not see all changes of what they refer to."""
    try:
        return Watch(*functions)
    except (_NotWatched, TypeError):  # TypeError: what no weak reference is made to
        return None
