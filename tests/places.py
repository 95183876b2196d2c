"""Where things lie: the repository, and the measured data and specifications beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"  # absent on a checkout that stands alone: tests that need it skip
