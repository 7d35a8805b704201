"""nanobind's own code, which fulmen._core calls: one library for each version of Python. A wheel
of `./dev wheels` carries them here; a build from source takes the package nanobind-backend."""


def fill(abi_major: int, platform_tag: str, table: object) -> object:
    """Called by fulmen._core as it is imported, to fill its table of functions."""
    try:
        import fulmen._nanobind._nb_backend_v1 as backend
    except ModuleNotFoundError:
        try:
            import nanobind_backend as backend
        except ModuleNotFoundError:
            import sys

            version = ".".join(map(str, sys.version_info[:2]))
            raise ImportError(
                f"this wheel of fulmen has no nanobind for Python {version}: "
                "pip install nanobind-backend"
            ) from None
    return backend.fill(abi_major, platform_tag, table)
