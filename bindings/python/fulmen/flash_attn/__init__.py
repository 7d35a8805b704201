"""What users of the package flash_attn (2.8) import, under the same names: `from fulmen.flash_attn import flash_attn_func`.

On top of what that package takes: tensors on the CPU, float32, and any head_dim from 1 to 256. Causal masks and windows are aligned
with the last key, as there. A row that attends no key has an lse of -inf, where flash_attn's is +inf.
"""

from fulmen.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
