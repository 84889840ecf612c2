"""Where the disk cache is, unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def default_cache_folder(environment: Mapping[str, str], platform: str, home: Path) -> Path:
    """Return the platform's folder for what can be made again (`platform`: `sys.platform`)."""
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "milepost" / "cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / "milepost"
    named = environment.get("XDG_CACHE_HOME", "")
    # Its specification: a path that is not absolute is to be ignored.
    return (Path(named) if Path(named).is_absolute() else home / ".cache") / "milepost"
