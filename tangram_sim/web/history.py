"""History of the page's answers on this machine's disk: one private file per question, with a checksum."""

import json
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tangram_sim.datafiles import parse_json, write_whole
from tangram_sim.digests import content_key
from tangram_sim.errors import BadInputError
from tangram_sim.keeping import drop_oldest, made_private
from tangram_sim.web.documents import HistoryDocument, KeptAnswer, KeptLine, VerbAnswer, VerbRequest

MOST_BYTES = 256 << 20  # of all kept answers: the oldest go first
_LONGEST = 32 << 20  # bytes of one answer that is kept
_NAME = re.compile(r"([0-9a-f]{32})\.json")
# Figures of answers that a list of them shows, of each verb those that it has.
_SHOWN = (
    "step_s",
    "tokens_per_s",
    "cost_per_hour",
    "good_share",
    "goodput",
    "tpot_s",
    "output_tok_s",
    "slowdown",
)


NOWHERE = Path(os.devnull)  # no folder: nothing is listed there, and nothing deleted


def history_folder() -> tuple[Path, str]:
    """(`tangram-sim/history` in XDG_DATA_HOME or ~/.local/share, reason if there is none)."""
    home = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(home) if home else Path.home() / ".local" / "share") / "tangram-sim" / "history", ""
    except RuntimeError:
        return NOWHERE, "the user has no home folder; XDG_DATA_HOME may name another"


def question_key(asked: VerbRequest) -> str:
    """Key of a question: equal requests have equal keys, on every machine."""
    return content_key(asked.model_dump(mode="json", exclude={"keep"}))


class History:
    """The kept answers in a folder; `why_off` states why none are kept, or is empty."""

    def __init__(self, folder: Path, why_off: str = "") -> None:
        self.folder, self.why_off = folder, why_off
        if not why_off:
            with suppress(OSError):
                folder.parent.mkdir(parents=True, exist_ok=True)
            if not made_private(folder):
                self.why_off = "the folder cannot be made, or others than you can use it"

    def put(self, asked: VerbRequest, answer: VerbAnswer) -> None:
        """Store an answer, replacing an older one to the same question; a failure to write is ignored."""
        kept = KeptAnswer(
            kept_at=datetime.now(UTC).isoformat(timespec="seconds"), request=asked, answer=answer
        ).model_dump(mode="json")
        with suppress(BadInputError, ValueError):
            text = json.dumps({"digest": content_key(kept), **kept}, allow_nan=False)
            if not self.why_off and len(text) <= _LONGEST:
                write_whole(self.folder / f"{question_key(asked)}.json", text, mode=0o600)
                drop_oldest(self._files(), MOST_BYTES)

    def get(self, key: str) -> KeptAnswer | None:
        """The answer stored under a key; None if there is none. Raises BadInputError for a damaged one."""
        path = self.folder / f"{key}.json"
        if not _NAME.fullmatch(path.name) or not path.is_file() or path.is_symlink():
            return None
        try:
            said = parse_json(path.read_text(encoding="utf-8"), path.name)
            if said.pop("digest") != content_key(said):
                raise ValueError
            kept = KeptAnswer.model_validate(said)
            if question_key(kept.request) != key:
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInputError):
            raise BadInputError(f"{path.name}: damaged: not what was written") from None
        return kept

    def listed(self) -> HistoryDocument:
        """All kept answers, the newest first, and the names of damaged files, which are skipped."""
        found, damaged = list[KeptLine](), list[str]()
        for path in self._files():
            try:
                kept = self.get(path.stem)
            except BadInputError:
                damaged.append(path.stem)
                continue
            if kept is not None:
                figures = kept.answer.document if isinstance(kept.answer.document, dict) else {}
                found.append(
                    KeptLine(
                        key=path.stem,
                        kept_at=kept.kept_at,
                        verb=kept.request.verb,
                        command=kept.answer.command,
                        figures={name: figures[name] for name in _SHOWN if _is_figure(figures.get(name))},
                    )
                )
        found.sort(key=lambda line: line.kept_at, reverse=True)
        return HistoryDocument(folder=str(self.folder), why_off=self.why_off, entries=found, damaged=damaged)

    def forget(self, key: str = "") -> int:
        """Delete the answer under `key`, damaged or not (empty: all); returns the number of files deleted."""
        gone = 0
        for path in self._files():
            if key in ("", path.stem):
                with suppress(OSError):
                    path.unlink()
                    gone += 1
        return gone

    def question_file(self) -> str:
        """All kept questions, with the files uploaded for them, as YAML that `tangram run` reads."""
        import yaml

        asked = []
        for line in reversed(self.listed().entries):
            kept = self.get(line.key)
            question = (
                kept and isinstance(kept.answer.document, dict) and kept.answer.document.get("question")
            )
            if kept and question:
                asked.append({**question, **({"files": kept.request.files} if kept.request.files else {})})
        return yaml.safe_dump({"questions": asked}, sort_keys=False, allow_unicode=True)

    def _files(self) -> list[Path]:
        """Files in the folder with names of the form that this class writes."""
        try:
            named = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(path for path in named if path.is_file() and not path.is_symlink())


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
