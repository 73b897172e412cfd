"""The user's own data: folders, tables, images."""

from focusfl.data.own.folder import Folder, folder

__all__ = ["Folder", "folder"]
