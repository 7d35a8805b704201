"""One row: each contestant's result is checked, then all are timed in turn."""

import torch
from calls import Call
from peers import contestants, fulmen_kernel, leading
from report import is_peer, ratios
from timing import first_line, of_backward, of_forward, seconds_in_turn

from reference import forward_error, gradient_error

SEED = 20261128
BOUND = {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.03}
PEERS_BOUND = 0.05  # of all dtypes: cuEquivariance may round fp32 to TF32


def drawn(call: Call) -> None:
    """Seeds PyTorch's generator, and keeps what Fulmen drops by that seed. A peer drops other
    elements: it is not compared."""
    import fulmen

    if call.kept is None:
        torch.manual_seed(SEED)
        seed = torch.empty((), dtype=torch.int64).random_().item()
        first = (x[:1].cpu() for x in (call.q, call.k))
        call.kept = fulmen.dropout_mask(*first, dropout=call.dropout, dropout_seed=seed)
    torch.manual_seed(SEED)


def one_gradient(call: Call, function, inputs, attended: bool):
    """A call's inputs, dout, which is the same for all contestants, and the gradients' error."""
    names = list(call.gradients)
    out = function(inputs)
    generator = torch.Generator(out.device).manual_seed(1)
    dout = torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype)
    leaves = [inputs[name] for name in names]
    found = torch.autograd.grad(out, leaves, dout)
    gradients = dict(zip(names, found, strict=True))
    return leaves, dout, gradient_error(call, dout, gradients, attended)


def checked(call: Call, name: str, function, backward: bool, device: str):
    """What to time of a contestant, its error (None: not compared), and why it is no graph."""
    inputs = leading(call)
    if call.dropout:
        drawn(call)
    with torch.set_grad_enabled(backward):
        if backward:
            leaves, dout, error = one_gradient(call, function, inputs, is_peer(name))
        else:
            error = forward_error(call, function(inputs), attended=is_peer(name))
        if call.dropout and is_peer(name):
            error = None
        if backward:
            return *of_backward(lambda: function(inputs), leaves, dout, device), error

    def run():
        with torch.no_grad():
            return function(inputs)

    return *of_forward(run, device), error


def wrong(call: Call, name: str, error: float | None) -> str:
    bound = PEERS_BOUND if is_peer(name) else BOUND[call.dtype]
    if error is None or error <= bound:
        return ""
    return f"WRONG: error {error:.3g} of the largest, {bound} is accepted"


def measured(call: Call, arguments, backward: bool) -> dict:
    """A row's times and errors by contestant, and who takes no part. PyTorch's math stands in
    where no peer does."""
    made, refused = contestants(call, arguments.peers, backward, arguments.kernels)
    timed, errors, eager, device = {}, {}, {}, arguments.device

    def add(name, function):
        try:
            one, why, errors[name] = checked(call, name, function, backward, device)
            if fault := wrong(call, name, errors[name]):
                refused[name] = fault
            if not fault or is_peer(name):  # a peer that is wrong is timed, and is never the best
                timed[name] = one
            if why:
                eager[name] = why
        except Exception as error:
            refused[name] = first_line(error)
            if is_broken(device, error):
                raise RuntimeError(
                    f"{name} broke the GPU's context: {first_line(error)}"
                ) from error

    for name, function in made.items():
        add(name, function)
    if not any(is_peer(name) and name not in refused for name in timed):
        for name, function in contestants(call, ["math"], backward)[0].items():
            if is_peer(name):
                add(name, function)
    row = {"kernel": kernel_of(call, backward), "refused": refused, "errors": errors}
    if eager:
        row["eager"] = eager
    times, spread = seconds_in_turn(timed, device, arguments.repeats, arguments.span_ms)
    return row | {"seconds": times, "spread": spread} | ratios(times, refused)


def is_broken(device: str, error: Exception | None = None) -> bool:
    """Whether the GPU's context, or PyTorch's generator after a capture that failed, is of no more
    use."""
    if device == "cpu":
        return False
    if error is not None and "outside graph capture" in str(error):
        return True
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def kernel_of(call: Call, backward: bool) -> str:
    try:
        return fulmen_kernel(call, backward)
    except Exception as error:
        return first_line(error)
