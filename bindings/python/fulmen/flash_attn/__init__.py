"""What users of the package flash_attn (2.8) import, under the same names:
`from fulmen.flash_attn import flash_attn_func`.

On top of what that package takes: tensors on the CPU, float32, and any head_dim from 1 to 512.
Causal masks and windows are aligned with the last key, as there. A row that attends no key has an
lse of -inf, where flash_attn's is +inf.

`install()` puts this package under the name flash_attn, for programs that import that, such as
transformers.
"""

from fulmen.flash_attn import _install
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
    "__version__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
    "uninstall",
]

# The release whose names and arguments these are.
__version__ = "2.8.3"

_PACKAGE = _install.Package(
    name="flash_attn",
    distribution="flash-attn",
    version=__version__,
    modules=("", ".flash_attn_interface", ".bert_padding", ".layers", ".layers.rotary"),
    source="fulmen.flash_attn",
)


def install(force: bool = False) -> None:
    """Makes `import flash_attn` give this package, in this process, and transformers'
    "flash_attention_2" run on it, on any device.

    `importlib.metadata` and `importlib.util.find_spec` know it, too. Names that were imported from
    a flash_attn before stay what they are. A second call does nothing.

    Args:
      force: hide a flash_attn that is installed until uninstall(). Otherwise that raises a
          RuntimeError.
    """
    _install.install(_PACKAGE, force)


def uninstall() -> None:
    """Takes install() back. Does nothing where it was not called."""
    _install.uninstall(_PACKAGE)
