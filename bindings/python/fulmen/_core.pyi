"""The extension module over the C ABI.

Tensors and options are tuples, in the orders that bindings/python/src/arguments/call.h names."""

from collections.abc import Callable
from typing import Any

__version__: str
# The most elements of a head: of q and k, and of v.
max_head_dim: int
max_head_dim_v: int
# Names of the tuple of tensors, by place.
tensor_names: tuple[str, ...]

class ArgumentError(ValueError, RuntimeError):
    """An argument has a value that is not accepted; the message names it, its value and what is
    accepted."""

Tensors = tuple[Any, ...]
Options = tuple[Any, ...]

def forward(
    tensors: Tensors,
    options: Options,
    device: str | None,
    bhsd: bool,
    want_lse: bool,
    **functions: Any,
) -> Any: ...
def backward(
    tensors: Tensors,
    options: Options,
    device: str | None,
    bhsd: bool,
    wanted: int,
    **functions: Any,
) -> tuple[Any, Any, Any, Any, Any]: ...
def reference(tensors: Tensors, options: Options, bhsd: bool) -> tuple[Any, Any]: ...
def reference_backward(
    tensors: Tensors, options: Options, bhsd: bool, wanted: int
) -> tuple[Any, Any, Any, Any, Any]: ...
def verify(
    tensors: Tensors, options: Options, bhsd: bool
) -> tuple[bool, float, float, float, float, str, str, int, float]: ...
def explain(
    tensors: Tensors,
    options: Options,
    device: str | None,
    bhsd: bool,
    want_lse: bool,
    wanted: int,
    **functions: Any,
) -> tuple[str, str, int]: ...
def dropout_mask(tensors: Tensors, options: Options, bhsd: bool) -> Any: ...
def append_kv(
    tensors: Tensors,
    device: str | None,
    rotary_interleaved: bool,
    queries_advance: bool,
    num_threads: int,
    validate: bool,
) -> tuple[Any, Any]: ...
def attention(q: Any, k: Any, v: Any, options: dict[str, Any], /) -> Any: ...
def quantize_kv(numbers: Any, quantized: Any, scale: Any | None, given_scales: bool) -> None: ...
def dequantize_kv(quantized: Any, scale: Any | None, numbers: Any) -> None: ...
def check_append_kv(
    tensors: Tensors,
    device: str | None,
    rotary_interleaved: bool,
    queries_advance: bool,
    num_threads: int,
    validate: bool,
) -> None: ...
def set_torch(functions: dict[str, Any]) -> None: ...
def torch_forward(
    tensors: Tensors, options: Options, device: str | None, bhsd: bool, want_lse: bool
) -> Any: ...
def torch_sdpa(*arguments: Any) -> Any: ...
def autograd_forward(ctx: Any, *arguments: Any) -> Any: ...
def autograd_backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]: ...
def torch_workspace(tensor: Any, bytes: int) -> Any: ...
def torch_observers(tensors: Tensors) -> int: ...
def xla_handlers() -> dict[str, dict[str, Any]]: ...
def add_prebuilt_path(path: str) -> None: ...
def add_prebuilt_pack(pack: bytes) -> None: ...
def set_prebuilt_source(function: Callable[[str, str | None], bool] | None) -> None: ...
def devices() -> list[tuple[str, str, str, bool, str, bool]]: ...
