"""Your own data: read files (readers), make a federation of a folder (folder), read one node's data (node)."""

from focusfl.data.own.folder import FolderFederation, folder

__all__ = ["FolderFederation", "folder"]
