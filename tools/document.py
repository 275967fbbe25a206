"""Writes the tables of settings and metrics into docs/configuration.md and docs/metrics.md, and the keywords of
`parallel_ppo.train`.

The text around the tables is written by hand. Run this after a change of the schema or the table of metrics.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

PARAMETERS = ("id", "callbacks")  # `train` has parameters for them
CALLABLE = ("learning_rate", "clip_range")
KEYWORDS = '''"""The keywords of `parallel_ppo.train` for editors and type checkers. Written by tools/document.py."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict


class Keywords(TypedDict, total=False):
'''
ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, guarded  # noqa: E402
from parallel_ppo.records.metrics import METRICS  # noqa: E402
from parallel_ppo.settings.schema import Settings, shown_default  # noqa: E402


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join((lines[0], "|" + "---|" * len(head) + "\n", *lines[1:]))


def settings_table(section: Any) -> str:
    rows = [
        (f"`{key}`", shown_default(field), field.description.replace("|", "\\|"))
        for key, field in section.model_fields.items()
    ]
    return table(("key", "default", "meaning"), rows)


def metrics_table(group: str) -> str:
    rows = [
        (f"`{name}`", metric.unit, metric.description)
        for name, metric in METRICS.items()
        if metric.group == group
    ]
    return table(("metric", "unit", "meaning"), rows)


def with_table(page: str, heading: str, new: str) -> str:
    """The page with another table below a heading."""
    pattern = rf"(\n## {heading}\n(?:(?!\n## )[^|])*?\n)((?:\|.*\n)+)"
    changed, count = re.subn(pattern, lambda match: match[1] + new, page, count=1)
    if not count:
        raise SystemExit(f"no table below '## {heading}'")
    return changed


def keywords() -> str:
    """The module with the keywords of `parallel_ppo.train`: of equal names the first, as there."""
    lines: dict[str, str] = {}
    for section in Settings.model_fields.values():
        for name, field in section.annotation.model_fields.items():  # type: ignore[union-attr]
            if name in PARAMETERS:
                continue
            first = field.description.partition(". ")[0].rstrip(".")
            lines.setdefault(name, f"    # {first}\n    {name}: {type_name(name, field.annotation)}\n")
    return KEYWORDS + "".join(lines.values())


def type_name(name: str, annotation: Any) -> str:
    """For people who write a call: `int | Literal["auto"]` is `int | str`."""
    if name in CALLABLE:
        return "float | Callable[[float], float]"
    found: list[str] = []

    def visit(part: Any) -> None:
        if get_origin(part) in (Union, UnionType):
            for one in get_args(part):
                visit(one)
        elif get_origin(part) is Annotated:
            visit(get_args(part)[0])
        elif get_origin(part) is Literal:
            found.append("str")
        elif get_origin(part) in (list, dict):
            found.append({list: "Sequence[Any]", dict: "dict[str, Any]"}[get_origin(part)])
        else:
            found.append("None" if part is type(None) else part.__name__)

    visit(annotation)
    return " | ".join(dict.fromkeys([*found, *(["type"] if name == "policy" else [])]))


def pages() -> dict[Path, str]:
    configuration, metrics = ROOT / "docs" / "configuration.md", ROOT / "docs" / "metrics.md"
    found = {path: path.read_text() for path in (configuration, metrics)}
    for name, field in Settings.model_fields.items():
        found[configuration] = with_table(found[configuration], name, settings_table(field.annotation))
    for group in dict.fromkeys(metric.group for metric in METRICS.values()):
        found[metrics] = with_table(found[metrics], group, metrics_table(group))
    found[ROOT / "parallel_ppo" / "library" / "keywords.py"] = keywords()
    return found


def main() -> int:
    Parser(description=str(__doc__), examples=["tools/document.py"], quiet=False).parse_args()
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
