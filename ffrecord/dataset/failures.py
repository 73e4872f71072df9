"""What goes wrong inside a codec, as one of our errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ffrecord.errors import FFRecordError

Function = TypeVar("Function", bound=Callable[..., Any])


def raising(ours: type[FFRecordError]) -> Callable[[Function], Function]:
    """Make a function raise `ours` for everything but what is an error of ours already."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def guarded(value: Any) -> Any:
            try:
                return function(value)
            except FFRecordError:
                raise
            except Exception as error:
                raise ours(reason(error)) from error

        return guarded  # type: ignore[return-value]

    return decorate


def reason(error: Exception) -> str:
    """Its words, or its class if it has none."""
    return str(error) or type(error).__name__
