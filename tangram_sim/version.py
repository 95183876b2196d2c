"""Which version of the package this is."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed

try:
    __version__ = _installed("tangram-sim")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
