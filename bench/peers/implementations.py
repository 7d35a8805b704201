"""What is compared: each maps a case and its inputs to (a call to be timed, a way to its output),
or raises Unsupported."""

from collections.abc import Callable

import onnx
import onnxruntime
import torch
from cases import Case, Inputs
from onnx import TensorProto, helper

Prepared = tuple[Callable[[], None], Callable[[], torch.Tensor]]

ONNX_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


class Unsupported(Exception):
    pass


def pytorch(case: Case, inputs: Inputs, threads: int) -> Prepared:
    torch.set_num_threads(threads)
    result: list[torch.Tensor] = [inputs.q]

    @torch.inference_mode()
    def run() -> None:
        result[0] = torch.nn.functional.scaled_dot_product_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            attn_mask=inputs.keep if inputs.bias is None else inputs.bias,
            is_causal=case.causal,
        )

    return run, lambda: result[0]


def onnx_runtime(case: Case, inputs: Inputs, threads: int) -> Prepared:
    shape = [case.batch, case.heads, case.seqlen, case.head_dim]
    onnx_type = ONNX_TYPES[case.dtype]
    # Its mask has a row for each query.
    tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "bias": inputs.bias}
    tensors["keep"] = (
        None if inputs.keep is None else inputs.keep.expand(-1, -1, case.seqlen, -1).contiguous()
    )
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    types = {name: TensorProto.BOOL if name == "keep" else onnx_type for name in tensors}
    node = helper.make_node("Attention", list(tensors), ["out"], is_causal=int(case.causal))
    graph = helper.make_graph(
        [node],
        "attention",
        [
            helper.make_tensor_value_info(name, types[name], list(tensor.shape))
            for name, tensor in tensors.items()
        ],
        [helper.make_tensor_value_info("out", onnx_type, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Its idle threads would otherwise spin while the next implementation is timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    out = torch.empty(shape, dtype=inputs.q.dtype)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, tensor in tensors.items():
            binding.bind_input(name, "cpu", 0, types[name], list(tensor.shape), tensor.data_ptr())
        binding.bind_output("out", "cpu", 0, onnx_type, shape, out.data_ptr())
        session.run_with_iobinding(binding)
    except Exception as error:  # the runtime has no narrower class for a missing kernel
        raise Unsupported(str(error).splitlines()[0]) from error

    def run() -> None:
        session.run_with_iobinding(binding)

    run.inputs = tensors  # whose memory it reads
    return run, lambda: out
