"""Fields that several questions have, stated once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.fields import SOFTWARE, option

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb


@dataclass(frozen=True, slots=True)
class Hardware:
    """Rows of hardware data that a question adds to the shipped ones."""

    hwdb: tuple[Path, ...] = option(
        (),
        "Folder with rows of your own; may be given several times, last wins.",
        group=SOFTWARE,
        on_page=False,
    )

    def load(self) -> "Hwdb":
        """The shipped hardware tables, overridden by the rows in the folders."""
        from tangram_sim.hwdb import Hwdb

        return Hwdb.load(self.hwdb)
