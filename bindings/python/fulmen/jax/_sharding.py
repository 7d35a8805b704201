"""How a call is divided among devices: over sequences (the batch), over heads, and over dims that
jax.vmap has added. Rows and head dims stay whole."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

_QUERIES = ("q", "out", "dout", "dq", "q_out")
_KEYS = ("k", "v", "dk", "dv", "k_cache", "v_cache")
_SCALES = ("k_scale", "v_scale", "q_scale")
_SCORES = ("bias", "keep_mask", "dbias")
# The dims of the others, behind the mapped ones: batch, heads, kv heads; "" stays whole.
_OTHERS = {
    "alibi_slopes": ("batch", "heads"),
    "sinks": ("heads",),
    "dsinks": ("heads",),
    "k_scale": ("batch", "kv_heads"),
    "v_scale": ("batch", "kv_heads"),
    "q_scale": ("batch", "kv_heads"),
    "seqlens_k": ("batch",),
    "leftpad_k": ("batch",),
    "seqlens_k_out": ("batch",),
    "block_table": ("batch", ""),
}


class Layout(NamedTuple):
    bhsd: bool = False
    packed_q: bool = False
    packed_k: bool = False
    pages: bool = False  # k and v are pages of all sequences
    whole: bool = False  # dropout: what it drops is a function of the number of head and sequence


class Plan(NamedTuple):
    arguments: tuple[NamedSharding, ...]
    results: tuple[NamedSharding, ...]
    summed: tuple[tuple[str, ...], ...]  # the mesh's axes over which each result is a sum


class Rules(NamedTuple):
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    layout: Layout
    leading: int

    def roles(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """What each dim of a tensor is divided as: "map0", "batch", "heads", "kv_heads"; "" where
        it stays whole."""
        own = shape[self.leading :]
        roles = self._own_roles(name, len(own))
        # One element is for all.
        roles = [role if size > 1 else "" for role, size in zip(roles, own, strict=True)]
        mapped = [f"map{n}" if shape[n] > 1 else "" for n in range(self.leading)]
        return mapped + roles

    def _own_roles(self, name: str, ndim: int) -> list[str]:
        layout = self.layout
        if layout.whole or name == "random":
            return [""] * ndim
        batch = "" if layout.packed_q or layout.packed_k else "batch"
        # Scales with more dims than those of a batch and a head have those of k.
        keys = name in _KEYS or (name in _SCALES and ndim > 2)
        if name in _QUERIES or keys:
            heads = "heads" if name in _QUERIES else "kv_heads"
            if keys and layout.pages:
                batch = ""
            four = [batch, heads, "", ""] if layout.bhsd else [batch, "", heads, ""]
        elif name in _SCORES:
            four = [batch, "heads", "", ""]
        elif name in ("lse", "dlse"):
            return [batch, "heads", ""][-ndim:]
        elif name in _OTHERS:
            return [batch if role == "batch" else role for role in _OTHERS[name]][-ndim:]
        else:
            four = [""] * 4  # cu_seqlens
        return four[-ndim:]

    def plan(self, mesh: Any, given: Any, wanted: Any) -> Plan:
        axes = self._axes(mesh, given)

        def spec(roles: list[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(axes.get(role) for role in roles)))

        of_results = [
            self.roles(name, one.shape) for name, one in zip(self.results, wanted, strict=True)
        ]
        return Plan(
            tuple(
                spec(self.roles(name, one.shape))
                for name, one in zip(self.arguments, given, strict=True)
            ),
            tuple(spec(roles) for roles in of_results),
            tuple(
                _sums(roles, axes) if name in _SUMS else ()
                for name, roles in zip(self.results, of_results, strict=True)
            ),
        )

    def _axes(self, mesh: Any, given: Any) -> dict[str, tuple[str, ...]]:
        """The mesh's axes by role, as the first tensor is sharded."""
        first = given[0]
        spec = (*getattr(first.sharding, "spec", ()), *(None,) * len(first.shape))
        found = {
            role: axes if isinstance(axes, tuple) else (axes,)
            for role, axes in zip(self.roles(self.arguments[0], first.shape), spec, strict=False)
            if role and axes
        }
        sizes = self._sizes(given)
        for role in list(found):
            if sizes[role] % self._parts(mesh, found[role]) != 0:
                del found[role]
        if "heads" in found:
            parts = self._parts(mesh, found["heads"])
            if sizes["kv_heads"] % parts == 0:
                found["kv_heads"] = found["heads"]
            elif sizes["kv_heads"] != 1:
                del found["heads"]
        elif "kv_heads" in found:  # of a cache: q has a multiple of them
            found["heads"] = found["kv_heads"]
        return found

    def _parts(self, mesh: Any, axes: tuple[str, ...]) -> int:
        return math.prod(mesh.shape[axis] for axis in axes)

    def _sizes(self, given: Any) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, one in zip(self.arguments[:2], given, strict=False):
            for role, size in zip(self.roles(name, one.shape), one.shape, strict=True):
                if role:
                    sizes[role] = size
        return {"heads": 1, "kv_heads": 1, **sizes}

    def of_shardy(self, mesh: Any, arguments: Any, results: Any) -> Any:
        """The same in Shardy's notation: a factor for each role, and one for each dim that stays
        whole."""
        named = [
            (name, tuple(one.shape))
            for name, one in zip(
                (*self.arguments, *self.results), (*arguments, *results), strict=True
            )
        ]
        sizes = {
            role: size
            for name, shape in named
            for role, size in zip(self.roles(name, shape), shape, strict=True)
            if role
        }
        heads, kv_heads = sizes.get("heads", 1), sizes.get("kv_heads", 1)
        words = {role: role for role in sizes}
        factor_sizes = {}
        if heads == kv_heads:
            words["heads"] = "kv_heads"
        elif kv_heads > 1 and all(kv_heads % size == 0 for size in mesh.shape.values()):
            # Else Shardy would divide a part of an axis, which JAX has no word for.
            words["heads"], factor_sizes["group"] = "(kv_heads group)", heads // kv_heads
        whole: list[str] = []

        def factor(role: str) -> str:
            if role:
                return words[role]
            whole.append(f"whole{len(whole)}")
            return whole[-1]

        written = [
            " ".join(factor(role) for role in self.roles(name, shape)) for name, shape in named
        ]
        ours = len(self.arguments)
        rule = f"{', '.join(written[:ours])} -> {', '.join(written[ours:])}"
        return rule, {"need_replication_factors": tuple(whole), **factor_sizes}


def summed(result: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return result
    return jax.lax.psum(result.astype(jnp.float32), axes).astype(result.dtype)


# Gradients of tensors that several sequences or heads may share.
_SUMS = ("dk", "dv", "dbias", "dsinks")


def _sums(roles: list[str], axes: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The axes over which queries are divided, and the result is not."""
    divided = {axis for role in roles for axis in axes.get(role, ())}
    of_queries = [axis for role, names in axes.items() if role != "kv_heads" for axis in names]
    return tuple(axis for axis in of_queries if axis not in divided)


def _manual_axes(array: Any) -> frozenset[str]:
    kind = jax.typeof(array) if hasattr(jax, "typeof") else None
    # Versions of JAX before 0.10 have vma.
    return getattr(getattr(kind, "mat", None), "varying", getattr(kind, "vma", frozenset()))


def manual_axes(arrays: Any) -> frozenset[str]:
    """The axes of jax.shard_map along which any of the arrays differs."""
    return frozenset().union(*(_manual_axes(one) for one in arrays if one is not None))


def differing(array: Any, axes: frozenset[str]) -> Any:
    """The array as one that may differ along the axes; its gradient is then the sum over those
    along which it did not."""
    missing = () if array is None else tuple(sorted(axes - _manual_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)
