"""Models of one node, their sessions with and without Fulmen's provider, and comparisons."""

import ctypes
import sys

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

NAME = "FulmenExecutionProvider"
BOUNDS = {"float32": 2e-5, "float16": 6e-3, "bfloat16": 4e-2}
KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
GQA_SCHEMA = next(
    schema
    for schema in get_all_operator_schema()
    if (schema.domain, schema.name) == ("com.microsoft", "GroupQueryAttention")
)
GQA_ATTRIBUTES = GQA_SCHEMA.attributes


def newest_attention():
    """The newest opset of Attention that Fulmen's provider and this ONNX Runtime know."""
    known = [
        s.since_version
        for s in get_all_operator_schema()
        if (s.domain, s.name) == ("", "Attention")
    ]
    return min(25, max(known))


def sessions(model, only_fulmen=False, threads=2):
    """A session with Fulmen and one without; fails where Fulmen does not have the node."""
    made = []
    for fulmen in (True,) if only_fulmen else (True, False):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if fulmen:
            devices = [d for d in ort.get_ep_devices() if d.ep_name == NAME]
            options.add_provider_for_devices(devices[:1], {})
            # Any node that it leaves to the CPU provider is an error.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made.append(ort.InferenceSession(model.SerializeToString(), options))
    return made


def model_of(op, inputs, outputs, attributes, unknown_ranks=(), domain="com.microsoft", opset=23):
    """inputs: name -> array, None where the node leaves one out; outputs: name -> dtype. The model
    does not say how many dims the inputs in unknown_ranks have."""
    given = {name: value for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in inputs]
    while names[-1] == "":
        names.pop()
    node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "one",
        [
            info(n, KINDS[str(v.dtype)], None if n in unknown_ranks else v.shape)
            for n, v in given.items()
        ],
        [info(n, KINDS[str(t)], None) for n, t in outputs.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def run(session, given):
    """Outputs of a session, also in dtypes that NumPy does not have."""
    values = {}
    for name, array in given.items():
        array = np.ascontiguousarray(array)
        if str(array.dtype) in ("bfloat16", "float8_e4m3fn"):
            bits = array.view(np.uint16 if array.itemsize == 2 else np.uint8)
            kind = KINDS[str(array.dtype)]
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
    outputs = []
    for value in session.run_with_ort_values(None, values):
        kind = value.element_type()
        if kind not in (TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN):
            outputs.append(value.numpy())
            continue
        two = kind == TensorProto.BFLOAT16
        dtype = np.dtype(ml_dtypes.bfloat16 if two else ml_dtypes.float8_e4m3fn)
        count = int(np.prod(value.shape()))
        copied = ctypes.string_at(value.data_ptr(), count * dtype.itemsize) if count else b""
        outputs.append(np.frombuffer(copied, dtype).reshape(value.shape()).copy())
    return outputs


def worst(ours, right):
    difference = np.abs(ours.astype(np.float64) - right.astype(np.float64))
    return float(np.max(difference / max(1.0, np.max(np.abs(right), initial=0)), initial=0))


def compare(name, ours, right, bound):
    if ours.shape != right.shape:
        sys.exit(f"{name} is {ours.shape}, not {right.shape}")
    error = worst(ours, right.astype(np.float64))
    if not error <= bound:
        sys.exit(f"{name} errs by {error:.2e}")
