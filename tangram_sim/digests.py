"""Digests of JSON content: whether a file that is read is the file that was written."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

DIGEST = "digest"  # the key of a plan file that holds the digest of its other keys
_OF_THE_RUN = (DIGEST, "planning_s", "planning_cpu_s")  # differ between runs with the same answer


class ChangedFileWarning(UserWarning):
    """A plan file or a cached answer was changed after it was written; its figures cannot be trusted."""


def content_key(content: Any) -> str:
    """Digest of anything that JSON can hold: 32 hex digits of a SHA-256 over its canonical text.

    Raises ValueError for numbers that JSON lacks.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def with_digest(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a plan file with the digest of all others under `digest`."""
    return {**plan, DIGEST: _plan_digest(plan)}


def is_changed(plan: Mapping[str, Any]) -> bool:
    """Whether a plan file, as read, differs from what was written; False for files without a digest."""
    if not plan.get(DIGEST):
        return False
    try:
        return bool(plan[DIGEST] != _plan_digest(plan))
    except ValueError:  # NaN, which no plan file was written with
        return True


def warn_of_change(plan: Mapping[str, Any], where: object) -> None:
    """Issue a ChangedFileWarning where a plan file differs from what was written."""
    if is_changed(plan):
        warnings.warn(
            f"{where}: changed since it was written (its digest is of other content): its decisions are used "
            "as they stand; do not rely on its figures, plan again for figures that hold",
            ChangedFileWarning,
            stacklevel=3,
        )


def _plan_digest(plan: Mapping[str, Any]) -> str:
    return content_key({key: value for key, value in plan.items() if key not in _OF_THE_RUN})
