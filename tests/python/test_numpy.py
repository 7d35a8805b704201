"""fulmen's functions on NumPy arrays: every option against float64, layouts, and what errors
say."""

import inspect

import fulmen
import numpy as np
import pytest
from problems import DTYPES, assert_close, attention_float64, normal, qkv

OPTIONS = {
    "plain": {},
    "scale": {"softmax_scale": 0.3},
    "softcap": {"softcap": 2.0},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left"},
    "window": {"window_left": 9, "window_right": 4},
    "causal_window": {"causal": "bottom_right", "window_left": 11},
}


def tensor_options(rng: np.random.Generator) -> dict[str, dict]:
    return {
        "bias": {"bias": normal(rng, (2, 4, 37, 53))},
        "bias_by_head": {"bias": normal(rng, (4, 1, 53), "bf16")},
        "mask": {"keep_mask": rng.random((2, 1, 37, 53)) < 0.7},
        "mask_2d": {"keep_mask": rng.random((37, 53)) < 0.5},
        "alibi": {"alibi_slopes": rng.random(4, dtype=np.float32)},
        "alibi_by_sequence": {"alibi_slopes": rng.random((2, 4), dtype=np.float32), "causal": True},
        "sinks": {"sinks": normal(rng, (4,))},
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [*OPTIONS, "bias", "bias_by_head", "mask", "mask_2d", "alibi", "alibi_by_sequence", "sinks"],
)
def test_options(rng, name, dtype):
    options = OPTIONS[name] if name in OPTIONS else tensor_options(rng)[name]
    q, k, v = qkv(rng, dtype=dtype)
    out, lse = fulmen.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = attention_float64(q, k, v, **options)
    assert type(out) is np.ndarray and out.dtype == DTYPES[dtype] and lse.dtype == np.float32
    assert_close(out, expected, dtype)
    assert_close(lse, expected_lse, "fp32", "lse")
    reference, reference_lse = fulmen.attention_reference(q, k, v, return_lse=True, **options)
    assert reference.dtype == np.float64
    # It works with the scale and the numbers of fp32 options.
    np.testing.assert_allclose(reference, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(reference_lse, expected_lse, rtol=0, atol=1e-6)
    assert fulmen.verify(q, k, v, out, lse=lse, **options).ok


def test_rows_without_keys(rng):
    q, k, v = qkv(rng)
    keep = np.ones((2, 1, 37, 53), bool)
    keep[1, 0, 5] = False
    out, lse = fulmen.attention(q, k, v, keep_mask=keep, return_lse=True)
    assert (
        (out[1, 5] == 0).all()
        and (lse[1, :, 5] == -np.inf).all()
        and np.isfinite(np.delete(lse, 5, 2)).all()
    )


@pytest.mark.parametrize("shape", [{"b": 0}, {"sq": 0}, {"sk": 0}])
def test_empty(rng, shape):
    q, k, v = qkv(rng, shape)
    out, lse = fulmen.attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == (q.shape[0], 4, q.shape[1])
    assert (out == 0).all() and (lse == -np.inf).all()


@pytest.mark.parametrize("shape", [{"b": 0}, {"sq": 0}, {"sk": 0}])
def test_gradients_of_nothing(rng, shape):
    """A bias, and sinks, that queries share have a gradient without any: 0."""
    q, k, v = qkv(rng, shape)
    given = {"bias": normal(rng, (1, 4, 1, k.shape[1])), "sinks": normal(rng, (4,))}
    out, lse = fulmen.attention(q, k, v, return_lse=True, **given)
    wanted = ("q", "k", "v", "bias", "sinks")
    for _ in range(3):
        # What the next arrays of that size are likely to be made of.
        full = [np.full(t.shape, np.nan, np.float32) for t in (q, k, v, *given.values())]
        del full
        gradients = fulmen.attention_backward(out, q, k, v, out, lse, gradients=wanted, **given)
        assert not any(gradient.any() for gradient in gradients)


def test_layouts_give_the_same_bits(rng):
    q, k, v = qkv(rng)
    out = fulmen.attention(q, k, v, causal=True)
    bhsd = [np.ascontiguousarray(t.swapaxes(1, 2)) for t in (q, k, v)]
    np.testing.assert_array_equal(
        fulmen.attention(*bhsd, causal=True, layout="bhsd").swapaxes(1, 2), out
    )
    np.testing.assert_array_equal(
        fulmen.attention(*(t.swapaxes(1, 2) for t in bhsd), causal=True), out
    )
    packed = np.full((2, 53, 3, 4, 24), np.nan, np.float32)
    packed[:, :, 1, :2], packed[:, :, 2, :2] = k, v
    np.testing.assert_array_equal(
        fulmen.attention(q, packed[:, :, 1, :2], packed[:, :, 2, :2], causal=True), out
    )
    assert fulmen.attention(q, k, v[..., :7]).shape == (2, 37, 4, 7)


def test_out_is_written_and_nothing_else(rng):
    q, k, v = qkv(rng)
    copies = [t.copy() for t in (q, k, v)]
    guarded = np.full((2, 39, 4, 24), np.nan, np.float32)
    out = guarded[:, 1:-1]
    assert fulmen.attention(q, k, v, out=out) is out
    assert_close(out, attention_float64(q, k, v)[0], "fp32")
    assert np.isnan(guarded[:, [0, -1]]).all()
    for before, after in zip(copies, (q, k, v), strict=True):
        np.testing.assert_array_equal(before, after)
    frozen = q.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(fulmen.attention(frozen, k, v), out)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "softcap": 3.0}, {"window_left": 5, "window_right": 5}]
)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradients(rng, options, layout):
    shape = {"b": 2, "sq": 19, "sk": 23}
    q, k, v = qkv(rng, shape)
    dout = normal(rng, q.shape)
    bias, sinks, dlse = normal(rng, (1, 4, 19, 23)), normal(rng, (4,)), normal(rng, (2, 4, 19))
    if layout == "bhsd":
        q, k, v, dout = (np.ascontiguousarray(t.swapaxes(1, 2)) for t in (q, k, v, dout))
    options = {"bias": bias, "sinks": sinks, "layout": layout, **options}
    out, lse = fulmen.attention(q, k, v, return_lse=True, **options)
    wanted = {"gradients": ("q", "k", "v", "bias", "sinks"), "dlse": dlse}
    gradients = fulmen.attention_backward(dout, q, k, v, out, lse, **wanted, **options)
    expected = fulmen.attention_backward_reference(dout, q, k, v, **wanted, **options)
    for name, ours, theirs, like in zip(
        gradients._fields, gradients, expected, (q, k, v, bias, sinks), strict=True
    ):
        assert ours.shape == like.shape and ours.dtype == np.float32 and theirs.dtype == np.float64
        assert_close(ours, theirs, "fp32", name)
    assert fulmen.verify(
        q, k, v, out, lse=lse, dout=dout, dlse=dlse, **gradients._asdict(), **options
    ).ok
    some = fulmen.attention_backward(dout, q, k, v, out, lse, gradients=["v"], **options)
    assert some.dq is None and some.dsinks is None and some.dv.shape == v.shape


def test_gradients_against_differences(rng):
    q, k, v = qkv(rng, {"b": 1, "sq": 3, "sk": 4, "hq": 2, "hkv": 1, "d": 4})
    weights = rng.standard_normal(q.shape)
    gradients = fulmen.attention_backward_reference(
        weights.astype(np.float32), q, k, v, causal=True
    )
    weights = weights.astype(np.float32).astype(np.float64)
    for at, gradient in enumerate(gradients[:3]):
        difference = np.empty(gradient.shape)
        for element in np.ndindex(gradient.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [t.astype(np.float64) for t in (q, k, v)]
                moved[at][element] += step
                sides.append((attention_float64(*moved, causal=True)[0] * weights).sum())
            difference[element] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(gradient, difference, rtol=0, atol=1e-6)


def test_dropout(rng):
    q, k, v = qkv(rng)
    dropped = {"dropout": 0.25, "dropout_seed": 7, "dropout_offset": 3}
    out = fulmen.attention(q, k, v, **dropped)
    kept = fulmen.dropout_mask(q, k, **dropped)
    assert kept.shape == (2, 4, 37, 53) and kept.dtype == bool and 0.7 < kept.mean() < 0.8
    assert_close(out, attention_float64(q, k, v, kept=kept, dropout=0.25)[0], "fp32")
    np.testing.assert_array_equal(out, fulmen.attention(q, k, v, **dropped))
    assert (out != fulmen.attention(q, k, v, **{**dropped, "dropout_seed": 8})).any()
    of_numpy = {**dropped, "dropout_seed": np.int64(7), "dropout_offset": np.uint8(3)}
    np.testing.assert_array_equal(out, fulmen.attention(q, k, v, **of_numpy))


def test_kernels_and_devices(rng):
    q, k, v = qkv(rng)
    plan = fulmen.plan(q, k, v)
    assert plan.explanation == fulmen.explain(q, k, v) and plan.explanation.startswith(plan.kernel)
    forced = fulmen.plan(q, k, v, kernel="cpu.prefill.scalar")
    assert forced.kernel == "cpu.prefill.scalar"
    assert_close(
        fulmen.attention(q, k, v, kernel=forced.kernel), attention_float64(q, k, v)[0], "fp32"
    )
    assert "backward" in fulmen.plan(q, k, v, backward=True).kernel
    cpu = next(device for device in fulmen.devices() if device.name == "cpu")
    assert cpu.usable and cpu.host_memory and cpu.features
    assert fulmen.__version__.count(".") == 2


def test_verify_finds_an_error(rng):
    q, k, v = qkv(rng)
    out = fulmen.attention(q, k, v, verify=True)
    out[1, 2, 3, 4] += 1
    report = fulmen.verify(q, k, v, out)
    assert (
        not report.ok
        and report.worst_error > 0.9 > report.bound
        and "[1, 2, 3, 4]" in report.message
    )


def bad(change):
    return lambda q, k, v: fulmen.attention(**{"q": q, "k": k, "v": v, **change(q, k, v)})


ERRORS = {
    "list": (
        bad(lambda q, k, v: {"k": k.tolist()}),
        TypeError,
        "k is of type list: a NumPy array, a torch tensor or another",
    ),
    "no queries": (
        bad(lambda q, k, v: {"q": None}),
        TypeError,
        "q is None: a NumPy array, a torch tensor or another array with",
    ),
    "contents": (
        bad(lambda q, k, v: {"num_threads": q}),
        TypeError,
        "num_threads is of type ndarray: an integer is accepted",
    ),
    "none": (bad(lambda q, k, v: {"v": None}), TypeError, "v is of type NoneType: a NumPy array"),
    "masked": (
        bad(lambda q, k, v: {"k": np.ma.masked_less(k, 0)}),
        TypeError,
        "k is of type MaskedArray: a NumPy array, a torch",
    ),
    "seed type": (
        bad(lambda q, k, v: {"dropout": 0.5, "dropout_seed": 1.5}),
        TypeError,
        "dropout_seed is 1.5, of type float: an integer is accepted",
    ),
    "float64": (
        bad(lambda q, k, v: {"q": q.astype(float)}),
        TypeError,
        "q has dtype float64: float32, float16 and bfloat16",
    ),
    "byte order": (
        bad(lambda q, k, v: {"q": q.astype(">f4")}),
        TypeError,
        "q has dtype >f4: this machine's byte order is accepted",
    ),
    "mixed": (bad(lambda q, k, v: {"k": k.astype(np.float16)}), ValueError, "k.dtype is fp16"),
    "mask dtype": (bad(lambda q, k, v: {"keep_mask": q}), ValueError, "keep_mask.dtype is fp32"),
    "3 dims": (
        bad(lambda q, k, v: {"q": q[0]}),
        ValueError,
        r"q has shape \[37, 4, 24\]: \[batch, seqlen, heads, head_dim\] is acc",
    ),
    "5 dims": (bad(lambda q, k, v: {"q": q[None]}), ValueError, "q has 5 dims: 4 at most"),
    "heads": (
        bad(lambda q, k, v: {"q": q[:, :, :3]}),
        ValueError,
        "num_kv_heads is 2, it must divide num_heads = 3",
    ),
    "head_dim": (bad(lambda q, k, v: {"k": k[..., :8]}), ValueError, "k.shape"),
    "stride": (bad(lambda q, k, v: {"v": v[..., ::2]}), ValueError, "v.strides"),
    "negative, written": (
        bad(lambda q, k, v: {"out": np.empty_like(q)[:, ::-1]}),
        ValueError,
        r"out.strides is .*: negative strides",
    ),
    "bias": (
        bad(lambda q, k, v: {"bias": q}),
        ValueError,
        r"bias.shape is \[2, 37, 4, 24\]: .* \[2, 4, 37, 53\] is needed",
    ),
    "sinks": (
        bad(lambda q, k, v: {"sinks": q}),
        ValueError,
        r"sinks has shape .*: \[heads\] is accepted",
    ),
    "alibi": (
        bad(lambda q, k, v: {"alibi_slopes": q}),
        ValueError,
        r"alibi_slopes has shape .*: \[heads\] or \[batch, heads\] is",
    ),
    "out": (
        bad(lambda q, k, v: {"out": q, "kernel": "cpu.standard.plain"}),
        ValueError,
        "kernel cpu.standard.plain does not write over q; those that do for this problem: cpu",
    ),
    "read-only": (
        bad(lambda q, k, v: {"out": np.broadcast_to(q[:1], q.shape)}),
        ValueError,
        "out is read-only",
    ),
    "causal": (
        bad(lambda q, k, v: {"causal": "left"}),
        ValueError,
        'causal is "left": False, True, "none"',
    ),
    "causal type": (
        bad(lambda q, k, v: {"causal": 2}),
        TypeError,
        "causal is 2, of type int: False, True",
    ),
    "scale": (
        bad(lambda q, k, v: {"softmax_scale": "1"}),
        TypeError,
        "softmax_scale is '1', of type str: a number is accepted",
    ),
    "nan": (
        bad(lambda q, k, v: {"softmax_scale": float("nan")}),
        ValueError,
        "softmax_scale is nan: a finite number, or None",
    ),
    "softcap": (bad(lambda q, k, v: {"softcap": -1}), ValueError, "softcap is -1"),
    "window": (bad(lambda q, k, v: {"window_left": -2}), ValueError, "window_left is -2: -1 to"),
    "dropout": (
        bad(lambda q, k, v: {"dropout": 1.5, "dropout_seed": 0}),
        ValueError,
        "dropout is 1.5",
    ),
    "seed": (
        bad(lambda q, k, v: {"dropout": 0.5}),
        ValueError,
        "dropout_seed is None and dropout is not 0",
    ),
    "kernel": (
        bad(lambda q, k, v: {"kernel": "fast"}),
        ValueError,
        'kernel is "fast": device "cpu" has no kernel of that name',
    ),
    "threads": (bad(lambda q, k, v: {"num_threads": -1}), ValueError, "num_threads is -1: 0 to"),
    "verify": (
        bad(lambda q, k, v: {"verify": 2}),
        TypeError,
        "verify is 2, of type int: True or False is accepted",
    ),
    "layout": (bad(lambda q, k, v: {"layout": "sbhd"}), ValueError, "layout is 'sbhd': \"bshd\""),
    "device": (bad(lambda q, k, v: {"device": "tpu"}), RuntimeError, 'device is "tpu"'),
    "refused": (
        bad(lambda q, k, v: {"kernel": "cpu.decode.scalar"}),
        NotImplementedError,
        "cpu.decode.scalar.*query rows",
    ),
    "option": (
        lambda q, k, v: fulmen.plan(q, k, v, scale=1),
        TypeError,
        r"plan\(\) got an unexpected keyword argument 'scale'",
    ),
    "gradients": (
        lambda q, k, v: fulmen.plan(q, k, v, backward=True, gradients="q"),
        ValueError,
        "gradients is 'q': a sequence of",
    ),
    "gradients, forward": (
        lambda q, k, v: fulmen.plan(q, k, v, gradients=["w"]),
        ValueError,
        r"gradients is \['w'\]: ",
    ),
    "no bias": (
        lambda q, k, v: fulmen.plan(q, k, v, backward=True, gradients=["bias"]),
        TypeError,
        "bias is None: an array is need",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(rng, name):
    call, error, message = ERRORS[name]
    q, k, v = qkv(rng)
    with pytest.raises(error, match=message):
        call(q, k, v)


def test_numpy_booleans_are_booleans(rng):
    q, k, v = qkv(rng)
    yes, no = np.bool_(True), np.bool_(False)
    out, lse = fulmen.attention(q, k, v, causal=yes, deterministic=yes, verify=no, return_lse=yes)
    expected, expected_lse = fulmen.attention(q, k, v, causal=True, return_lse=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    np.testing.assert_array_equal(fulmen.attention(q, k, v, causal=no), fulmen.attention(q, k, v))


def test_every_argument_of_the_signature_is_known(rng, plans):
    q, k, v = qkv(rng)
    parameters = inspect.signature(fulmen.attention).parameters
    assert list(parameters)[:3] == ["q", "k", "v"] and len(parameters) == 38
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    expected = fulmen.attention(q, k, v)
    for name, default in defaults.items():
        made_now = "".join(list(name))  # not the string that the source has
        assert np.array_equal(fulmen.attention(q, k, v, **{made_now: default}), expected), name
    assert np.array_equal(fulmen.attention(v=v, q=q, k=k, **defaults), expected)
    assert len(set(plans())) == 1
    with pytest.raises(
        TypeError, match=r"attention\(\) got an unexpected keyword argument 'scale'"
    ):
        fulmen.attention(q, k, v, scale=1.0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'v'"):
        fulmen.attention(q, k)


def test_nothing_is_written_on_an_error(rng):
    q, k, v = qkv(rng)
    out = np.full_like(q, np.nan)
    with pytest.raises(NotImplementedError):
        fulmen.attention(q, k, v, out=out, kernel="cpu.decode.scalar")
    assert np.isnan(out).all()
