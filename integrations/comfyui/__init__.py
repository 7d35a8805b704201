"""ComfyUI's package of custom nodes: the folder is linked or copied into ComfyUI/custom_nodes."""

from fulmen.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, install

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]

install()
