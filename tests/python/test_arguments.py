"""Arguments as users pass them: lists, scalars, any strides, names of other libraries; and errors
for wrong ones.
"""

import inspect
import re

import fulmen
import numpy as np
import pytest
from fulmen import _core
from fulmen._arguments import LENGTHS, OPTIONAL_TENSORS, Options
from problems import normal, qkv

GRADIENTS = ("q", "k", "v", "bias", "sinks")
LENGTHS_Q, LENGTHS_K = [9, 0, 1, 30, 4], [17, 5, 40, 30, 0]


def refuse(call, error, message, *args, **options):
    with pytest.raises(error, match=message):
        call(*args, **options)


# Each argument's message names the types that it takes.
DTYPES = {
    "q": (np.float64, r"q has dtype float64: float32, float16 and bfloat16 are accepted$"),
    "bias": (np.float64, r"bias has dtype float64: float32, float16 and bfloat16 are accepted$"),
    "keep_mask": (
        np.int8,
        r"keep_mask has dtype int8: bool or uint8, where not 0 attends, is accepted$",
    ),
    "alibi_slopes": (np.float64, r"alibi_slopes has dtype float64: float32 is accepted$"),
    "sinks": (np.int64, r"sinks has dtype int64: float32, .* and float64 are accepted$"),
    "seqlens_k": (
        np.float32,
        r"seqlens_k has dtype float32: int32 is accepted, and other integers, which are converted$",
    ),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_that_an_argument_takes(rng, name):
    dtype, message = DTYPES[name]
    q, k, v = qkv(rng)
    given = {"q": q, "k": k, "v": v, name: (q if name == "q" else np.ones(2)).astype(dtype)}
    refuse(fulmen.attention, TypeError, message, **given)


def test_keys_and_values_of_another_dtype_or_with_scales(rng):
    q, k, v = qkv(rng)
    call = fulmen.attention
    of_q = "^k.dtype is fp16, q.dtype is fp32: q's dtype, int8, fp8 and the block formats are"
    refuse(call, ValueError, of_q, q, k.astype(np.float16), v.astype(np.float16))
    heads = k.shape[2]
    for scale in (
        [0.5],
        [0.5] * heads,
        np.full((len(k), heads), 0.5, np.float32),
        np.full((1, heads), 0.5, np.float32),
    ):
        want = fulmen.attention(q, k * np.float32(0.5), v)
        np.testing.assert_allclose(fulmen.attention(q, k, v, k_scale=scale), want, atol=1e-6)
    refuse(call, ValueError, r"^v_scale.shape is \[3\]: ", q, k, v, v_scale=[1.0] * 3)
    accepted = r"v_scale has shape \[1, 1, 1\]: \[1\], \[kv_heads\], \[batch, kv_heads\] or what"
    refuse(call, ValueError, accepted, q, k, v, v_scale=np.ones((1, 1, 1), np.float32))


# The extension does not compile with a tensor of the C ABI that it has no name for.
def test_every_tensor_is_an_argument():
    given = [
        name
        for name in _core.tensor_names
        if name not in ("lse", "dout", "dlse", *(f"d{one}" for one in GRADIENTS))
    ]
    assert given[:4] == ["q", "k", "v", "out"] and "leftpad_k" in given
    assert set(given) <= set(inspect.signature(fulmen.attention).parameters)
    assert set(given[4:]) <= set(Options.__annotations__)
    assert set(given[4:]) == {*OPTIONAL_TENSORS, *LENGTHS}
    for name in given[3:]:
        with pytest.raises((TypeError, ValueError), match=name) as refused:
            _core.attention(*[np.zeros((1, 1, 1, 8), np.float32)] * 3, {name: object()})
        assert "unexpected" not in str(refused.value)


OTHER_NAMES = {
    "attn_mask": r"bias \(added to the scores\) or keep_mask \(True attends\)",
    "mask": r"bias .* or keep_mask .*",
    "attn_bias": "bias",
    "scale": "softmax_scale",
    "sm_scale": "softmax_scale",
    "is_causal": "causal",
    "dropout_p": "dropout",
    "p": "dropout",
    "window_size": "window_left and window_right",
    "local_window_size": "window_left and window_right",
    "logits_soft_cap": "softcap",
    "cache_seqlens": "seqlens_k",
    "page_table": "block_table",
    "return_attn_probs": "return_lse",
}


@pytest.mark.parametrize(
    "function", [fulmen.attention, fulmen.attention_reference, fulmen.plan, fulmen.explain]
)
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_libraries(rng, name, function):
    message = rf"unexpected keyword argument '{name}': here it is called {OTHER_NAMES[name]}$"
    refuse(function, TypeError, message, *qkv(rng), **{name: 1})


def test_unknown_names_say_what_is_accepted(rng):
    for call in (fulmen.attention, fulmen.plan):
        refuse(
            call,
            TypeError,
            "unexpected keyword argument 'colour': bias, keep_mask, .*, layout are",
            *qkv(rng),
            colour=1,
        )


def test_negative_strides(rng, monkeypatch, capfd):
    """NumPy inputs that run backwards are copied, and explain says it; results are those of the
    copies."""
    q, k, v = qkv(rng)
    options = {
        "bias": normal(rng, (2, 4, 37, 53))[:, ::-1],
        "sinks": normal(rng, (4,))[::-1],
        "causal": True,
    }
    turned = [q[:, ::-1], k[::-1, ::-1], v[:, ::-1, ::-1]]
    straight = [np.ascontiguousarray(t) for t in turned]
    plain = {
        name: np.ascontiguousarray(t) if isinstance(t, np.ndarray) else t
        for name, t in options.items()
    }
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    out, lse = fulmen.attention(*turned, return_lse=True, **options)
    assert "q is copied before: it has a negative stride" in capfd.readouterr().err
    expected, expected_lse = fulmen.attention(*straight, return_lse=True, **plain)
    assert "copied" not in capfd.readouterr().err
    monkeypatch.delenv("FLASH_ATTENTION_DEBUG")
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    backwards = out[::-1].copy()[::-1], lse[:, ::-1].copy()[:, ::-1]
    ours = fulmen.attention_backward(
        backwards[0], *turned, *backwards, gradients=GRADIENTS, **options
    )
    theirs = fulmen.attention_backward(out, *straight, out, lse, gradients=GRADIENTS, **plain)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        fulmen.attention_reference(*turned, **options),
        fulmen.attention_reference(*straight, **plain),
    )
    assert fulmen.verify(*turned, backwards[0], lse=backwards[1], **options).ok
    text = fulmen.explain(*turned, **options)
    for name in GRADIENTS:
        assert f"{name} is copied before: it has a negative stride" in text
    assert "copied" not in fulmen.explain(*straight, **plain)
    last = q[..., ::-1]
    np.testing.assert_array_equal(fulmen.attention(last, k, v), fulmen.attention(last.copy(), k, v))


def test_negative_strides_of_a_cache(rng):
    caches = [np.zeros((2, 8, 2, 4), np.float32) for _ in range(4)]
    new = normal(rng, (2, 3, 2, 4))
    fulmen.append_kv(*caches[:2], np.array([1, 2], np.int32)[::-1], new[:, ::-1], new[::-1])
    fulmen.append_kv(*caches[2:], [2, 1], new[:, ::-1].copy(), new[::-1].copy())
    for one, other in zip(caches[:2], caches[2:], strict=True):
        np.testing.assert_array_equal(one, other)
    refuse(
        fulmen.append_kv,
        ValueError,
        r"k_cache.strides is .*: negative strides",
        caches[0][::-1],
        caches[1],
        [0, 0],
        new,
        new,
    )


def test_broadcast_transposed_and_read_only_inputs(rng):
    q, k, v = qkv(rng)
    repeated = np.broadcast_to(q[:1], q.shape)
    heads_first = np.ascontiguousarray(k.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    heads_first.flags.writeable = False
    np.testing.assert_array_equal(
        fulmen.attention(repeated, heads_first, v), fulmen.attention(repeated.copy(), k, v)
    )
    refuse(
        fulmen.attention,
        ValueError,
        r"^k.strides is \[.*\]: the last dim must be contiguous",
        q,
        np.asfortranarray(k),
        v,
    )


def test_scalars_of_numpy_and_torch(rng):
    q, k, v = qkv(rng)
    expected = fulmen.attention(q, k, v, causal=True, window_left=3, softcap=2.0, num_threads=1)
    kinds = [
        (int, float, 1),
        (np.int64, np.float32, np.True_),
        (np.uint8, np.float64, np.int32(1)),
        (np.array, np.array, np.array(True)),
    ]
    try:
        import torch

        kinds.append((torch.tensor, torch.tensor, torch.tensor(True)))
    except ImportError:
        pass
    for integer, number, yes in kinds:
        given = {
            "causal": yes,
            "window_left": integer(3),
            "softcap": number(2.0),
            "num_threads": integer(1),
            "verify": yes,
        }
        np.testing.assert_array_equal(
            fulmen.attention(q, k, v, return_lse=yes, **given)[0], expected
        )
        assert fulmen.plan(q, k, v, return_lse=yes, **given).kernel
    refuse(fulmen.attention, TypeError, "causal is 2, of type int", q, k, v, causal=2)
    refuse(
        fulmen.attention,
        TypeError,
        "window_left is 1.5, of type float: an integer is accepted",
        q,
        k,
        v,
        window_left=1.5,
    )


def test_messages_have_the_dims_of_the_array(rng):
    q, k, v = qkv(rng)
    heads_first = [t.transpose(0, 2, 1, 3) for t in (q, k, v)]
    heads_first[2] = heads_first[2][:, :, 1:]
    expected = (
        r"^v.shape is \[2, 2, 52, 24\]: \[batch, num_kv_heads, seqlen_k, head_dim_v\] = \[2, 2, "
        r"53, 24\]"
    )
    refuse(fulmen.attention, ValueError, expected, *heads_first, layout="bhsd")
    refuse(
        fulmen.attention,
        ValueError,
        r"^sinks.shape is \[3\]: \[num_heads\]",
        q,
        k,
        v,
        sinks=np.ones(3, np.float32),
    )
    refuse(
        fulmen.attention,
        ValueError,
        r"^seqlens_k.shape is \[3\]: \[batch\] = \[2\] is",
        q,
        k,
        v,
        seqlens_k=[1, 2, 3],
    )
    expected = (
        r"^bias.shape is \[37, 52\]: \[batch, num_heads, seqlen_q, seqlen_k\] = \[2, 4, 37, 53\]"
    )
    refuse(fulmen.attention, ValueError, expected, q, k, v, bias=np.ones((37, 52), np.float32))


def test_a_message_names_no_argument_that_was_not_given(rng):
    q, k, v = qkv(rng)
    expected = r"^max_seqlen_k is 9: sequence 0 has 52 keys, rows 1 \(leftpad_k\) to 52 of k"
    refuse(fulmen.attention, ValueError, expected, q, k, v, leftpad_k=[1, 2], max_seqlen_k=9)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_lists_and_wide_integers(kind, rng):
    """Lengths, tables and slopes as lists and int64, in each function."""
    arrays = [
        normal(rng, (sum(n), h, 24)) for n, h in ((LENGTHS_Q, 4), (LENGTHS_K, 2), (LENGTHS_K, 2))
    ]
    arrays.append(normal(rng, (5, 43, 2, 24)))
    if kind == "torch":
        array = pytest.importorskip("torch").from_numpy
    else:
        array = pytest.importorskip("jax").numpy.asarray if kind == "jax" else np.asarray
    q, k, v, cache = map(array, arrays)
    packed = {
        name: np.cumsum([0, *n], dtype=np.int32)
        for name, n in (("cu_seqlens_q", LENGTHS_Q), ("cu_seqlens_k", LENGTHS_K))
    }
    slopes, most = np.float32([0.5, 0.25, 0.125, 1]), {"max_seqlen_q": 30, "max_seqlen_k": 40}
    given = {
        **{name: array(c) for name, c in packed.items()},
        "alibi_slopes": array(slopes),
        **most,
    }
    out, lse = fulmen.attention(q, k, v, return_lse=True, **given)
    gradients = fulmen.attention_backward(out, q, k, v, out, lse, **given)
    lists = {
        **{name: c.tolist() for name, c in packed.items()},
        "alibi_slopes": slopes.tolist(),
        **most,
    }
    # jax has int64 by an option of the process only: NumPy's beside it
    wide = {
        **given,
        **{
            name: (np.asarray if kind == "jax" else array)(c.astype(np.int64))
            for name, c in packed.items()
        },
    }
    for other in (lists, wide):
        np.testing.assert_array_equal(fulmen.attention(q, k, v, **other), out)
        for one, same in zip(
            gradients[:3],
            fulmen.attention_backward(out, q, k, v, out, lse, **other)[:3],
            strict=True,
        ):
            np.testing.assert_array_equal(one, same)
        assert fulmen.verify(q, k, v, out, lse=lse, **other).ok
        assert fulmen.plan(q, k, v, **other).kernel
        assert fulmen.attention_reference(q, k, v, **other).shape == (44, 4, 24)
    one = q[:5][:, None]
    expected = fulmen.attention(one, cache, cache, seqlens_k=array(np.array(LENGTHS_K, np.int32)))
    np.testing.assert_array_equal(
        fulmen.attention(one, cache, cache, seqlens_k=LENGTHS_K), expected
    )
    tables = {"seqlens_k": LENGTHS_K, "block_table": [[n] for n in range(5)]}
    np.testing.assert_array_equal(fulmen.attention(one, cache, cache, **tables), expected)
    if kind == "torch":
        leaf = q.clone().requires_grad_()
        fulmen.attention(leaf, k, v, **lists).backward(out)
        np.testing.assert_array_equal(leaf.grad, gradients[0])
    refuse(
        fulmen.attention,
        TypeError,
        r"block_table is \[\[0\], \[1, 2\]\]: a list of integers",
        one,
        cache,
        cache,
        block_table=[[0], [1, 2]],
    )


def test_options_through_the_dispatcher(rng):
    """Under an observing mode, options are converted and refused as elsewhere."""
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, qkv(rng))
    expected = fulmen.attention(q, k, v, causal=True, window_left=3, softcap=2.0, softmax_scale=0.5)
    for integer, number, yes in (
        (np.int64, np.float32, np.True_),
        (torch.tensor, torch.tensor, torch.tensor(True)),
        (int, float, 1),
    ):
        options = {
            "window_left": integer(3),
            "softcap": number(2),
            "softmax_scale": number(0.5),
            "causal": yes,
            "deterministic": yes,
        }
        with torch.overrides.BaseTorchFunctionMode():
            assert torch.equal(fulmen.attention(q, k, v, **options), expected)
    for name, value, message in (
        ("softmax_scale", "1.5", "softmax_scale is '1.5', of type str: a number is accepted"),
        ("softcap", None, "softcap is None, of type NoneType: a number is accepted"),
        ("window_left", 1.5, "window_left is 1.5, of type float: an integer is accepted"),
        ("verify", 2, "verify is 2, of type int: True or False is accepted"),
        ("causal", 2, "causal is 2, of type int"),
    ):
        refuse(fulmen.attention, TypeError, message, q, k, v, **{name: value})
        with torch.overrides.BaseTorchFunctionMode():
            refuse(fulmen.attention, TypeError, message, q, k, v, **{name: value})


def test_scalars_beside_jax_arrays(rng):
    jax = pytest.importorskip("jax")
    q, k, v = map(jax.numpy.asarray, qkv(rng))
    expected = fulmen.attention(q, k, v, causal=True, window_left=3, softcap=2.0)
    for integer, number, yes in (
        (np.int64, np.float32, np.True_),
        (np.array, np.array, np.array(True)),
        (int, float, 1),
    ):
        given = fulmen.attention(
            q, k, v, causal=yes, window_left=integer(3), softcap=number(2.0), verify=yes
        )
        np.testing.assert_array_equal(given, expected)


# Errors of functions that take no options of attention(): they use their own name for an argument,
# or attention()'s.
ELSEWHERE = {
    "cache_seqlens": "here it is called seqlens_k$",
    "page_table": "here it is called block_table$",
    "attn_mask": r"of this library's functions fulmen.attention takes such, as bias \(added to the "
    r"scores\) or keep_mask .*$",
    "softmax_scale": "of this library's functions fulmen.attention takes such, as softmax_scale$",
    "colour": "k_cache, v_cache, .*, device are accepted$",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_other_libraries_for_a_cache(rng, name):
    caches, new = [np.zeros((2, 8, 2, 4), np.float32) for _ in range(2)], normal(rng, (2, 3, 2, 4))
    message = rf"append_kv\(\) got an unexpected keyword argument '{name}': {ELSEWHERE[name]}"
    refuse(fulmen.append_kv, TypeError, message, *caches, [1, 2], new, new, **{name: 1})


def test_validate_is_an_option(rng):
    """In host memory tables are checked always; test_device_memory.py has a device's own memory."""
    q, k, v = qkv(rng)
    for validate in (False, True, np.True_):
        refuse(
            fulmen.attention,
            ValueError,
            r"seqlens_k\[1\] is 54",
            q,
            k,
            v,
            seqlens_k=[3, 54],
            validate=validate,
        )
    options = {"seqlens_k": [3, 53], "causal": True}
    np.testing.assert_array_equal(
        fulmen.attention(q, k, v, validate=True, **options), fulmen.attention(q, k, v, **options)
    )
    np.testing.assert_array_equal(
        fulmen.attention(q, k, v, validate=True), fulmen.attention(q, k, v)
    )
    refuse(
        fulmen.attention,
        TypeError,
        "validate is 'yes', of type str: True or False is accepted",
        q,
        k,
        v,
        validate="yes",
    )


def defaults(explanation):
    """The parameters of the chosen kernel, as tuning takes them."""
    return ",".join(
        f"{name}={value}" for name, value in re.findall(r"(\w+)=(\d+) \(default\)", explanation)
    )


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_parameters_of_a_kernel(kind, rng):
    q, k, v = qkv(rng)
    if kind != "numpy":
        module = pytest.importorskip(kind)
        q, k, v = map(module.from_numpy if kind == "torch" else module.numpy.asarray, (q, k, v))
    tuning = defaults(fulmen.explain(q, k, v))
    assert "(option)" in fulmen.explain(q, k, v, tuning=tuning)
    expected = fulmen.attention(q, k, v)
    np.testing.assert_array_equal(fulmen.attention(q, k, v, tuning=tuning), expected)
    refuse(
        fulmen.attention,
        ValueError,
        r"blok_n=1 \(option\): .* has no such parameter; it has ",
        q,
        k,
        v,
        tuning="blok_n=1",
    )
    refuse(fulmen.attention, ValueError, r'tuning is "fast": name=number', q, k, v, tuning="fast")
    refuse(
        fulmen.attention,
        TypeError,
        "tuning is 64, of type int: a str, or None, is accepted",
        q,
        k,
        v,
        tuning=64,
    )
    if kind == "torch":  # of the forward kernel alone, straight and through the dispatcher
        leaf = q.clone().requires_grad_()
        fulmen.attention(leaf, k, v, tuning=tuning).sum().backward()
        straight = leaf.grad
        through = module.func.grad(lambda x: fulmen.attention(x, k, v, tuning=tuning).sum())(q)
        np.testing.assert_array_equal(straight, through)
    if kind == "jax":
        assert (
            module.grad(lambda x: fulmen.attention(x, k, v, tuning=tuning).sum())(q).shape
            == q.shape
        )
