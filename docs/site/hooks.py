"""Hooks of mkdocs: the navigation, generated pages, marks of run blocks, links out of docs/."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tangram_sim  # noqa: E402
from docs.site import order, rooms, verbs  # noqa: E402 - the repository is no installed package

DOCS = ROOT / "docs"
_MARKED = re.compile(r"^```(\w+) (?:run|output|file=(\S+))$", re.M)
_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)*\.\./(benchmarks/results|examples|hwdb|validate|traces)/([^)#\s]+)[^)]*\)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page finds its place by the folder that it stands in."""
    nav: list[Any] = [{"Home": "index.md"}]
    nav += [{"Tutorial": "tutorial.md"}] if (DOCS / "tutorial.md").exists() else []
    nav += [{"Cookbook": "how-to/cookbook.md"}, {"Contents": "contents.md"}]
    nav += [{"Words": "concepts.md"}, {"Verbs": "verbs.md"}]
    nav += [{title: [f"how-to/{name}.md" for name in names]} for title, names in order.QUESTIONS.items()]
    for folder, title in order.THEORY.items():
        pages = sorted((DOCS / folder).glob("*.md"))
        nav += [{title: [f"{folder}/{page.name}" for page in pages]}] if pages else []
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    nav.append({"Accuracy and speed": [*_accuracy(), *(f"results/{page.name}" for page in results)]})
    nav.append({"Reference": ["reference/verbs.md", "reference/python.md", "reference/plug-ins.md"]})
    nav.append({"Architecture": "design.md"})
    config.nav = nav
    return config


def _accuracy() -> list[str]:
    return ["accuracy.md"] if (DOCS / "accuracy.md").exists() else []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generated pages: home from the README, references, tables of benchmarks."""
    made = {
        "index.md": _home(),
        "reference/verbs.md": verbs.page(),
        "reference/python.md": _python(),
        "reference/plug-ins.md": _plug_ins(),
    }
    for page in (ROOT / "benchmarks" / "results").glob("*.md"):
        made[f"results/{page.name}"] = page.read_text(encoding="utf-8").replace("../../docs/", "../")
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for picture in (ROOT / "docs" / "pictures").glob("*"):
        if not files.get_file_from_path(f"pictures/{picture.name}"):
            files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Marks for the tests become what readers need; what lies outside docs/ is named, or led to its copy."""
    text = _MARKED.sub(lambda m: f'```{m[1]} title="{m[2]}"' if m[2] else f"```{m[1]}", markdown)
    up = "../" * page.file.src_uri.count("/")
    text = _OUTSIDE.sub(lambda m: _outside(m[1], m[2], m[3], up), text)
    text = re.sub(r"\]\((?:\.\./)+README\.md", f"]({up}index.md", text)
    if page.file.src_uri == "design.md":
        text = text.replace("## The house\n", f"## The house\n\n{rooms.drawing()}\n", 1)
    return text


def _outside(words: str, folder: str, name: str, up: str) -> str:
    if folder == "benchmarks/results" and name.endswith(".md"):
        return f"[{words}]({up}results/{name})"
    return f"{words} (`{folder}/{name}`)"


def _home() -> str:
    """The README, its links seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r'src="docs/', 'src="', text)
    text = re.sub(r"\[([^\]]+)\]\((benchmarks/results)/([^)#\s]+\.md)[^)]*\)", r"[\1](results/\3)", text)
    return re.sub(
        r"\[([^\]]+)\]\(((?:[A-Z]+\.md|LICENSE|CHANGELOG\.md|examples|changelog|hwdb)[^)]*)\)",
        r"\1 (`\2`)",
        text,
    )


def _python() -> str:
    """The public names, each from where it is defined."""
    names = sorted(tangram_sim._PUBLIC.items(), key=lambda item: (item[0][0].isupper(), item[0].lower()))
    parts = ["# Python\n\n`import tangram_sim as ts` offers these; each is resolved on first use.\n"]
    homes = {"load_cluster": "tangram_sim.hwdb.cluster_file", "load_model": "tangram_sim.hwdb.models"}
    homes["Hwdb"] = "tangram_sim.hwdb.database"
    parts += [f"::: {homes.get(name, module)}.{name}\n" for name, module in names]
    return "\n".join(parts)


def _plug_ins() -> str:
    return (
        "# Plug-ins\n\nA parallelizer plans one slice on one island "
        "([how to add one](../how-to/add-a-parallelizer.md)); a whole-cluster planner plans all of it.\n\n"
        "::: tangram_sim.parallelizers.api\n\n::: tangram_sim.parallelizers.contract.check_parallelizer\n\n"
        "::: tangram_sim.planners.whole_cluster\n\n::: tangram_sim.training.schedules.base.Schedule\n"
    )
