"""Dependencies between the packages point one way; this reads the imports and holds them to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import milepost

SOURCE = Path(milepost.__file__).parent

BASE = {"errors", "kinds", "units", "logs", "lru", "config"}  # light, and free of decisions
# Package or module -> what of ours it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "kinds": set(),
    "arrays": set(),
    "units": set(),
    "lru": set(),
    "sqlite_files": {"errors"},
    "config": {"errors", "kinds", "units", "protocol"},
    "logs": {"errors", "config"},
    "protocol": {"errors", "kinds", "arrays"},
    "libllama": {"errors", "kinds", "arrays"},
    "cache": {"errors", "kinds", "arrays", "units", "sqlite_files"},
    "metrics": {"errors", "units", "protocol"},
    "engine": BASE | {"arrays", "protocol", "cache", "libllama"},
    "chat": {"errors", "kinds", "lru", "sqlite_files", "config", "protocol"},
    "media": {"errors", "kinds", "lru", "config", "chat"},
    "workers": BASE | {"protocol"},
    "api": BASE | {"protocol", "chat", "media", "workers", "metrics"},
    "dashboard": {"metrics"},
    "assemble": BASE
    | {"protocol", "libllama", "chat", "media", "workers", "api", "metrics", "dashboard", "traces"},
    "traces": {"errors"},
    "client": {"errors", "kinds", "traces"},
    # Talks HTTP to servers, and starts them as processes.
    "bench": {"errors", "units", "logs", "traces", "client"},
    "cli": BASE | {"protocol", "assemble", "bench", "cache", "client", "traces"},
}
# Sub-package -> which of its siblings it may import besides itself and the modules beside them.
SUB_MAY_IMPORT: dict[str, set[str]] = {
    "api.native": {"openai"},
    "api.openai": set(),
    "cache.disk": set(),
    "chat.conversation": set(),
    "chat.formats": {"conversation"},
    "chat.templates": {"conversation", "formats"},
    "chat.replies": {"formats"},
    "chat.reply_memory": {"conversation", "formats", "replies"},
    "chat.prompts": {"conversation", "formats", "templates", "replies", "reply_memory"},
    "engine.media": set(),
}
# Foreign package -> who may import it.
OWNERS = {
    "cffi": {"libllama"},
    "_cffi_backend": {"libllama"},
    "xllamacpp": {"libllama", "bench"},  # bench: the server in it, as the yardstick
    "jinja2": {"chat"},
    "llguidance": {"engine", "chat"},
    "pydantic": {"api"},
    "fastapi": {"api", "assemble"},
    "starlette": {"api", "assemble"},
    "uvicorn": {"api", "assemble"},
    "huggingface_hub": {"cli"},
    "click": {"cli"},
    "httpx": {"bench", "client"},
    "matplotlib": {"bench"},
    "PIL": {"media"},
    "soundfile": {"media"},
}
# Too slow for `milepost --help`, or leading to something that is.
NOT_AT_TOP_OF_CLI = {
    *("assemble", "fastapi", "starlette", "uvicorn", "jinja2", "cffi", "numpy", "pydantic"),
    *("huggingface_hub", "rich", "httpx", "importlib.metadata", "bench", "client", "matplotlib"),
}


@dataclass(frozen=True)
class Import:
    """One import: a package of ours by its name below `milepost`, or a foreign one."""

    name: str
    sub_package: str  # "chat.formats" where a module of ours lies in one, else ""
    is_ours: bool
    is_at_top: bool  # of the module, not inside a function


def read_imports(source: str, package: str) -> Iterator[Import]:
    """Yield the imports of a module in `package` (dotted, with milepost in front)."""
    tree = ast.parse(source)
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        for module in _modules_named(node, package):
            parts = module.split(".")
            if parts == ["milepost"]:
                continue
            ours = parts[0] == "milepost"
            sub_package = ".".join(parts[1:3])
            if not ours or sub_package not in SUB_MAY_IMPORT:
                sub_package = ""
            yield Import(parts[1] if ours else module, sub_package, ours, id(node) not in inner)


def _modules_named(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:
        base = package.split(".")
        module = ".".join([*base[: len(base) - node.level + 1], *([module] if module else [])])
    if module == "milepost":  # `from milepost import chat` names a package, __version__ does not
        return [f"milepost.{alias.name}" for alias in node.names if alias.name != "__version__"]
    return [module]


def find_offences(source: str, package: str, layer: str) -> list[str]:
    """Return a sentence for every import that the layers forbid."""
    offences = []
    home = package.removeprefix("milepost.")
    siblings = SUB_MAY_IMPORT.get(home)
    for found in read_imports(source, package):
        sub_layer, _, sibling = found.sub_package.partition(".")
        is_sibling = siblings is not None and sub_layer == layer and found.sub_package != home
        if is_sibling and sibling not in (siblings or ()):
            offences.append(f"{home} imports {found.sub_package}")
        root = found.name.split(".")[0]
        if found.is_ours and found.name != layer and found.name not in MAY_IMPORT[layer]:
            offences.append(f"{layer} imports {found.name}")
        if not found.is_ours and root in OWNERS and layer not in OWNERS[root]:
            offences.append(f"{layer} imports {root}")
        if layer == "cache" and root == "time":
            offences.append("cache has a clock of its own")
        heavy = {found.name, root} & NOT_AT_TOP_OF_CLI
        if layer == "cli" and found.is_at_top and heavy:
            offences.append(f"cli imports {found.name} before it is needed")
    return offences


def all_modules() -> list[tuple[Path, str, str]]:
    """Return path, package and layer of every module."""
    modules = []
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if relative.parts == ("__init__.py",):
            continue
        package = ".".join(["milepost", *relative.parts[:-1]])
        modules.append((path, package, relative.parts[0].removesuffix(".py")))
    return modules


@pytest.mark.parametrize(
    ("path", "package", "layer"),
    all_modules(),
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_a_module_imports_only_what_its_layer_may(path: Path, package: str, layer: str) -> None:
    assert layer in MAY_IMPORT, f"{layer} is not in the table of layers"
    home = package.removeprefix("milepost.")
    assert "." not in home or home in SUB_MAY_IMPORT, f"{home} is not in the table of sub-packages"
    assert find_offences(path.read_text(encoding="utf-8"), package, layer) == []


@pytest.mark.parametrize(
    ("layer", "source", "offence"),
    [
        (
            "engine",
            "from milepost.chat.templates.template import ChatTemplate",
            "engine imports chat",
        ),
        ("engine", "import milepost.api.app", "engine imports api"),
        ("chat", "from milepost import libllama", "chat imports libllama"),
        ("chat", "from milepost.api.openai.schemas import ChatFields", "chat imports api"),
        ("chat", "import pydantic", "chat imports pydantic"),
        ("api", "from ..engine.loop import Loop", "api imports engine"),
        ("workers", "def f():\n    import milepost.engine.main", "workers imports engine"),
        ("protocol", "from milepost.config import Settings", "protocol imports config"),
        ("engine", "import cffi", "engine imports cffi"),
        ("chat", "from cffi import FFI", "chat imports cffi"),
        ("cache", "import time", "cache has a clock of its own"),
        ("cli", "import fastapi", "cli imports fastapi"),
        ("cli", "import numpy.linalg", "cli imports numpy.linalg before it is needed"),
        ("cli", "from milepost.assemble import serve", "cli imports assemble before it is needed"),
    ],
)
def test_a_wrong_direction_is_found(layer: str, source: str, offence: str) -> None:
    assert offence in find_offences(source, f"milepost.{layer}", layer)


@pytest.mark.parametrize(
    ("home", "source", "offence"),
    [
        (
            "chat.formats",
            "from milepost.chat.templates.template import ChatTemplate",
            "chat.formats imports chat.templates",
        ),
        (
            "chat.conversation",
            "from ..prompts.boundaries import TextBoundary",
            "chat.conversation imports chat.prompts",
        ),
    ],
)
def test_a_wrong_direction_within_a_package_is_found(home: str, source: str, offence: str) -> None:
    assert find_offences(source, f"milepost.{home}", home.split(".")[0]) == [offence]


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("cli", "def f():\n    from milepost.assemble import serve"),
        ("cli", "def f():\n    import huggingface_hub"),
        ("engine", "from milepost.libllama import Context"),
        ("libllama", "import cffi"),
        ("api", "from .sse import Event"),
        ("cli", "from milepost import __version__"),
    ],
)
def test_a_right_direction_is_left_alone(layer: str, source: str) -> None:
    assert find_offences(source, f"milepost.{layer}", layer) == []
