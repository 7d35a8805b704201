"""Random nodes GroupQueryAttention beside double precision and, where it serves them, beside ONNX
Runtime's CPU provider."""

import ml_dtypes
import numpy as np
from models import BOUNDS, GQA_ATTRIBUTES, GQA_SCHEMA, compare, model_of, run, sessions

from reference import attention, from_bnsh, heads_of, kept_rows, normalized, rotated

STORED = {"int8": np.int8, "int4": np.uint8, "fp8": ml_dtypes.float8_e4m3fn}
# Of 1.30 and newer.
WITH_QUERY_LENGTHS = len(GQA_SCHEMA.inputs) > 16
WITH_NORMS = len(GQA_SCHEMA.inputs) > 14
WITH_FLOAT8 = "tensor(float8e4m3fn)" in str(
    [c.allowed_type_strs for c in GQA_SCHEMA.type_constraints]
)


def unpacked(codes):
    """Nibbles of int4 as numbers, [..., 2 * bytes]."""
    low, high = codes.astype(np.int16) & 15, codes.astype(np.int16) >> 4
    return np.stack([low, high], -1).reshape(*codes.shape[:-1], -1) - 8


class Case:
    """A random node, its inputs, and what each output is to be."""

    def __init__(self, random):
        flip = lambda p: bool(random.random() < p)  # noqa: E731
        self.dtype = np.dtype(str(random.choice(["float32", "float32", "float16", "bfloat16"])))
        self.batch, self.kv_heads = int(random.integers(1, 4)), int(random.integers(1, 4))
        self.d = int(random.choice([32, 64]))
        self.heads = int(self.kv_heads * random.integers(1, 4))
        # prompt: rows and total agree; chunk: several rows behind others, of one sequence.
        self.mode = str(random.choice(["prompt", "token", "token", "chunk", "shared", "sliding"]))
        if self.mode == "sliding" and "sliding_window_cache" not in GQA_ATTRIBUTES:
            self.mode = "token"
        if self.mode == "chunk":
            self.batch = 1
        self.rows = int(random.integers(2, 24)) if self.mode in ("prompt", "chunk") else 1
        if self.mode == "sliding" and flip(0.4):
            self.batch, self.rows = 1, int(random.integers(2, 9))
        # Rows of a padded chunk that are tokens.
        self.chunks = (
            self.mode in ("token", "chunk", "sliding") and WITH_QUERY_LENGTHS and flip(0.3)
        )
        if self.chunks:
            self.batch, self.rows = int(random.integers(1, 4)), int(random.integers(1, 12))
        self.fresh = 0 if self.mode == "shared" else self.rows
        self.causal, self.window = True, -1
        # Attributes of ONNX Runtime 1.30 and newer.
        if self.mode == "sliding":
            self.window = int(random.integers(1, 12))
        elif not self.chunks and flip(0.25) and "causal" in GQA_ATTRIBUTES:
            self.causal = False
        elif flip(0.3):
            self.window = int(random.integers(1, 20))
        self.lengths = self.random_lengths(random)
        self.total = int(self.lengths.max())
        prompt = self.mode == "prompt"
        self.valid = np.full(self.batch, self.rows)
        if prompt:
            self.valid = self.lengths
        elif self.chunks:
            self.valid = random.integers(0, np.minimum(self.rows, self.lengths) + 1)
        self.before = np.zeros(self.batch, int) if prompt else self.lengths - self.valid
        if self.mode == "sliding":
            self.room = self.window + int(random.integers(0, 6))
        else:
            self.room = self.total + int(random.integers(0, 5)) if not prompt or flip(0.5) else 0
            if self.chunks:
                self.room = max(self.room, int(self.before.max()) + self.rows)
                self.total += int(random.integers(0, 3)) if flip(0.5) else 0  # a bound is enough
                self.total = max(self.total, self.rows)
                self.room = max(self.room, self.total)
        self.softcap = 5.0 if flip(0.3) else 0.0
        self.scale = 0.2 if flip(0.2) else None
        self.sinks = random.standard_normal(self.heads).astype(self.dtype) if flip(0.25) else None
        self.smooth = flip(0.2)
        self.interleaved = flip(0.5)
        self.quantized = {"k": "NONE", "v": "NONE"}
        self.stored = None
        if "kv_cache_bit_width" in GQA_ATTRIBUTES and flip(0.35):
            self.stored = str(random.choice(["int8", "int4"] + ["fp8"] * WITH_FLOAT8))
            kinds = ["PER_TENSOR", "PER_CHANNEL"]
            self.quantized["k"] = self.quantized["v"] = str(random.choice(kinds))
            if flip(0.2):
                self.quantized["v"] = str(random.choice(kinds))
        self.make_inputs(random, flip)

    def random_lengths(self, random):
        """Tokens of each sequence after the run."""
        if self.mode == "prompt":
            lengths = random.integers(1, self.rows + 1, self.batch)
            lengths[random.integers(self.batch)] = self.rows
        elif self.chunks:
            lengths = random.integers(1, 40, self.batch)
        elif self.mode == "chunk":
            lengths = np.array([self.rows + random.integers(1, 20)])
        else:
            # One row of a total of one is a prompt.
            lengths = self.rows + random.integers(1, 40, self.batch)
        return lengths

    def make_inputs(self, random, flip):
        b, d, dtype = self.batch, self.d, self.dtype
        array = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
        self.q = array(b, self.rows, self.heads, d)
        self.k, self.v = (array(b, self.fresh, self.kv_heads, d) for _ in "kv")
        flat = lambda x: x.reshape(*x.shape[:2], x.shape[2] * d)  # noqa: E731
        packed = self.fresh > 0 and flip(0.3)
        rotary = flip(0.5)
        angle = random.standard_normal((64, int(random.choice([d // 2, d // 4]))))
        self.positions = self.before[:, None] + np.arange(self.rows)
        ids = None
        if rotary and flip(0.4):
            ids = random.integers(0, 60, (b, self.rows))
            if self.mode == "prompt":  # the first number alone counts
                ids[0, 0] = random.integers(0, 64 - self.rows)
                self.positions = np.broadcast_to(ids[0, 0] + np.arange(self.rows), (b, self.rows))
            else:
                self.positions = ids
        norms = [array(d) for _ in "qk"] if WITH_NORMS and flip(0.2) else None
        bias = None
        if (self.mode != "sliding" or WITH_QUERY_LENGTHS) and flip(0.3):
            first, second = random.choice([1, b]), random.choice([1, self.heads])
            bias = array(first, second, self.rows, self.total)
        self.scales, pasts = {}, {"k": None, "v": None}
        for side in "kv":
            shape = (1, self.kv_heads, 1, d) if self.quantized[side] == "PER_CHANNEL" else (1,)
            least = {"int8": 0.02, "int4": 0.3, "fp8": 0.01, None: 0}[self.stored]
            scale = (least * (1 + random.random(shape))).astype(np.float32)
            self.scales[side] = scale if self.stored else None
            if self.room or self.stored:  # which says the present's type
                shape = (b, self.kv_heads, self.room, d // 2 if self.stored == "int4" else d)
                pasts[side] = self.random_past(random, shape)
        self.pasts = pasts
        both = np.concatenate([flat(self.q), flat(self.k), flat(self.v)], 2) if packed else None
        self.inputs = {
            "query": both if packed else flat(self.q),
            "key": None if packed else flat(self.k),
            "value": None if packed else flat(self.v),
            "past_key": pasts["k"],
            "past_value": pasts["v"],
            "seqlens_k": (self.lengths - 1).astype(np.int32),
            "total_sequence_length": np.array(self.total, np.int32),
            "cos_cache": np.cos(angle).astype(dtype) if rotary else None,
            "sin_cache": np.sin(angle).astype(dtype) if rotary else None,
            "position_ids": ids,
            "attention_bias": bias,
            "head_sink": self.sinks,
            "k_scale": self.scales["k"],
            "v_scale": self.scales["v"],
            "q_norm_weight": norms[0] if norms else None,
            "k_norm_weight": norms[1] if norms else None,
            "query_seqlens": self.valid.astype(np.int32) if self.chunks else None,
        }
        self.attributes = {
            "num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": int(rotary),
            "rotary_interleaved": int(self.interleaved),
        }  # fmt: skip
        self.add_attributes(norms)

    def random_past(self, random, shape):
        if self.stored == "int8":
            return random.integers(-60, 60, shape).astype(np.int8)
        if self.stored == "int4":
            return random.integers(0, 256, shape).astype(np.uint8)
        return random.standard_normal(shape).astype(STORED.get(self.stored, self.dtype))

    def add_attributes(self, norms):
        more = self.attributes
        if norms:
            more["qk_norm_epsilon"] = 1e-3
        if not self.causal:
            more["causal"] = 0
        if self.window > 0:
            more["local_window_size"] = self.window
        if self.mode == "sliding":
            more["sliding_window_cache"] = 1
        if self.softcap:
            more["softcap"] = self.softcap
        if self.scale:
            more["scale"] = self.scale
        if self.smooth:
            more["smooth_softmax"] = 1
        if self.stored:
            more["k_quant_type"], more["v_quant_type"] = self.quantized["k"], self.quantized["v"]
            if self.stored == "int4" or self.lengths[0] % 4:  # 8 need not be said
                more["kv_cache_bit_width"] = 4 if self.stored == "int4" else 8

    def model(self):
        cache = str(np.dtype(STORED[self.stored])) if self.stored else str(self.dtype)
        outputs = {"output": str(self.dtype), "present_key": cache, "present_value": cache}
        return model_of("GroupQueryAttention", self.inputs, outputs, self.attributes)

    def on_cpu(self):
        """Whether ONNX Runtime's CPU provider has it."""
        same = self.quantized["k"] == self.quantized["v"] and self.stored != "fp8"
        same = same and (not self.stored or "kv_cache_bit_width" in self.attributes)
        return self.dtype != ml_dtypes.bfloat16 and same and self.inputs["q_norm_weight"] is None

    def numbers(self, cache, side):
        """A cache's numbers, [batch, rows, kv_heads, size]."""
        if self.stored == "int4":
            cache = unpacked(cache)
        with np.errstate(invalid="ignore"):  # rows that are nobody's
            numbers = cache.astype(np.float64)
        if self.stored:
            numbers = numbers * self.scales[side].astype(np.float64)
        return from_bnsh(numbers)

    def prepared(self):
        """Queries and new keys behind norm and rotation, in the tensors' type."""
        q, k, i = self.q, self.k, self.inputs
        if i["q_norm_weight"] is not None:
            q = normalized(q, i["q_norm_weight"], 1e-3)
            k = normalized(k, i["k_norm_weight"], 1e-3)
        if i["cos_cache"] is not None:
            tables = i["cos_cache"], i["sin_cache"]
            q = rotated(q, *tables, self.positions, self.interleaved)
            if self.fresh:
                k = rotated(k, *tables, self.positions, self.interleaved)
        return q.astype(self.dtype), k

    def check_rows(self, name, ours, right, side):
        """Rows of the present, [rows, kv_heads, size], are the new ones as stored."""
        scale = self.scales[side]
        if not self.stored:
            return compare(name, ours, right.astype(np.float64), BOUNDS[str(self.dtype)] / 4)
        steps = scale if scale.size == 1 else scale.reshape(self.kv_heads, self.d)
        least, most = {"int8": (-128, 127), "int4": (-8, 7), "fp8": (-448, 448)}[self.stored]
        right = np.clip(right.astype(np.float64), least * steps, most * steps)
        allowed = 0.51 * steps + 1e-6  # a half's tie may fall either way
        if self.stored == "fp8":
            allowed = np.abs(right) * 0.0626 + steps * 0.002
        elif self.dtype != np.float32:  # norm and rotation are rounded to it before
            ulp = 2**-7 if self.dtype == ml_dtypes.bfloat16 else 2**-10
            allowed = allowed + np.abs(right) * ulp
        assert (np.abs(ours - right) <= allowed).all(), f"{name}: {np.abs(ours - right).max()}"

    def check(self, name, outputs):
        q, k = self.prepared()
        bound = BOUNDS[str(self.dtype)]
        out = heads_of(outputs[0].astype(np.float64), self.heads)
        news = {"k": k, "v": self.v}
        presents = {"k": outputs[1], "v": outputs[2]}
        for b in range(self.batch):
            seen = {}
            first = self.before[b]
            if self.mode == "sliding":
                first = kept_rows(first, self.room, self.window)
            for side in "kv":
                past = self.numbers(self.pasts[side][b : b + 1], side)[0] if self.room else None
                present = self.numbers(presents[side][b : b + 1], side)[0]
                end = first + self.valid[b]
                kept = kept_rows(self.lengths[b], self.room, self.window) if (
                    self.mode == "sliding") else end  # fmt: skip
                if self.fresh:
                    fresh = min(self.valid[b], kept)
                    stored = present[kept - fresh : kept]
                    right = news[side][b, self.valid[b] - fresh : self.valid[b]]
                    self.check_rows(f"{name}: present {side}", stored, right, side)
                head = present[:0] if past is None else past[:first]
                if self.mode == "sliding":
                    # New rows that the cache has lost already are attended all the same.
                    lost = self.valid[b] - fresh
                    new = np.concatenate([self.exact(news[side][b, :lost], side),
                                          present[kept - fresh : kept]])  # fmt: skip
                    seen[side] = np.concatenate([head, new])
                    tail = seen[side][len(seen[side]) - kept :]
                    compare(f"{name}: kept {side}", present[:kept], tail, 1e-6)
                elif self.fresh:
                    compare(f"{name}: past {side}", present[:first], head, 0)
                    seen[side] = present[:end]
                else:
                    seen[side] = past[:end]
            used = self.valid[b]
            keys = len(seen["k"])
            at = first + np.arange(self.rows)[:, None]
            keep = np.arange(keys) < (at + 1 if self.causal else keys)
            if self.window > 0:
                keep = keep & (np.arange(keys) > at - self.window)
            bias = self.inputs["attention_bias"]
            if bias is not None:
                skipped = self.before[b] - first  # the first row's position
                bias = bias[b % len(bias)][None, :, :, skipped : skipped + keys]
            sinks = np.zeros(self.heads) if self.smooth else None
            sinks = sinks if self.sinks is None else self.sinks
            right = attention(q[b : b + 1], seen["k"][None], seen["v"][None], keep, self.scale,
                              self.softcap, bias, sinks)  # fmt: skip
            compare(f"{name}: output", out[b, :used], right[0, :used], bound)

    def exact(self, rows, side):
        """Rows as stored, for those that no output has."""
        if not self.stored:
            return rows.astype(self.dtype).astype(np.float64)
        scale = self.scales[side].astype(np.float64)
        steps = scale if scale.size == 1 else scale.reshape(self.kv_heads, self.d)
        if self.stored == "fp8":
            codes = np.clip(rows / steps, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            return codes.astype(np.float64) * steps
        most = 127 if self.stored == "int8" else 7
        return np.clip(np.rint(rows.astype(np.float64) / steps), -most - 1, most) * steps


def check(random, rounds):
    beside = 0
    for index in range(rounds):
        case = Case(random)
        model, given = case.model()
        there = [n for n, v in case.inputs.items() if v is not None]
        name = f"GroupQueryAttention {index} ({case.mode}, {case.dtype}, cache {case.stored}, "
        name += f"{there}, {case.attributes})"
        made = sessions(model, only_fulmen=not case.on_cpu())
        ours = run(made[0], given)
        case.check(name, ours)
        if not case.on_cpu():
            continue
        beside += 1
        theirs = run(made[1], given)
        for b, length in enumerate(case.valid):  # rows that no sequence uses
            ours[0][b, length:] = theirs[0][b, length:] = 0
        # The CPU provider rounds the queries to 8 bits, too, where it has instructions for that.
        # A number between two steps may be either: in int4 a half's step or more.
        bound = 6e-2 if case.stored == "int4" else 2e-2 if case.stored else BOUNDS[str(case.dtype)]
        compare(f"{name}, beside the CPU provider", ours[0], theirs[0], bound)
    print(f"GroupQueryAttention: {rounds} random nodes agree, {beside} with the CPU provider, too")
