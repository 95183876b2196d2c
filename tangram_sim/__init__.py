"""tangram-sim: plan and simulate LLM training and serving on clusters of unequal GPUs.

Every name that `__init__.pyi` lists is resolved on first use, so that `import tangram_sim` loads nothing that
computes. Type checkers see the real signatures there.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from tangram_sim.version import __version__ as __version__

_MODULES = ("rl",)  # verbs of a workload: `ts.rl.plan(...)`
_LISTED = re.compile(r"^from (tangram_sim\.\S+) import ([A-Za-z]\w*) as \2$", re.MULTILINE)
# Name -> module that defines it.
_PUBLIC = {
    name: module
    for module, name in _LISTED.findall(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - names of a table


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tangram_sim.{name}")
    if name not in _PUBLIC:
        plain = name.replace("_", "").lower()
        near = [known for known in _PUBLIC if len(plain) > 2 and plain in known.replace("_", "").lower()]
        hint = f"; there is {', '.join(near)}" if near else ""
        raise AttributeError(f"module 'tangram_sim' has no attribute {name!r}{hint}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__doc__"))
