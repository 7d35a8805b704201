"""Arrays of other libraries that follow the Python array API: on the host they are read in place,
and results become theirs."""

from typing import Any

import numpy as np

from fulmen import _core
from fulmen._arguments import Framework


def _to_host(array: Any) -> Any:
    # Elsewhere fulmen._core says where the array is. np.asarray knows bfloat16, DLPack's NumPy does
    # not.
    return (
        np.asarray(array)
        if hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == 1
        else array
    )


def _from_host(result: Any, like: Any) -> Any:
    return like.__array_namespace__().asarray(result) if isinstance(result, np.ndarray) else result


def _forward(
    tensors: tuple[Any, ...],
    options: tuple[Any, ...],
    device: str | None,
    bhsd: bool,
    want_lse: bool,
) -> Any:
    # An output that was given is written where it is.
    host = tuple(t if at == 3 else _to_host(t) for at, t in enumerate(tensors))
    result = _core.forward(host, options, device, bhsd, want_lse)
    if not want_lse:
        return _from_host(result, tensors[0])
    return tuple(_from_host(one, tensors[0]) for one in result)


def _backward(
    tensors: tuple[Any, ...], options: tuple[Any, ...], device: str | None, bhsd: bool, wanted: int
) -> tuple[Any, ...]:
    results = _core.backward(tuple(_to_host(t) for t in tensors), options, device, bhsd, wanted)
    return tuple(_from_host(one, tensors[0]) for one in results)


FRAMEWORK = Framework(_forward, _backward, _to_host, _from_host)
