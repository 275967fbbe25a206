"""Every renderer shows the whole document, and text from outside only as text."""

import csv
import io
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from matplotlib.text import Text
from rich.console import Console

from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line
from parallel_ppo.reports import theme
from parallel_ppo.reports.compare_command import main
from parallel_ppo.reports.comparison import compare
from parallel_ppo.reports.comparison_report import document, run_records
from parallel_ppo.reports.document import (
    as_html,
    as_json,
    as_text,
    print_document,
    to_csv,
)
from tests.reports.conftest import group
from tests.reports.run_copies import copy_run, read_rows, write_rows

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies

EVIL = "<b>x</b> & <script>alert('1')</script> |a|b `c` [red]d[/red] $\\frac$ =1+1 \x1b[31m \x07"
NAMES = [EVIL, "_hidden", "x" * 400, "two\nlines", "\udc80", "a$_$"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Labels, machines and environments with markup of every kind."""
    folder = tmp_path_factory.mktemp("hostile")
    groups = [
        group(
            one_line(name), copy_run(folder / str(index), machine=name, env__id=name.replace("\udc80", "$"))
        )
        for index, name in enumerate(NAMES)
    ]
    return document(compare(groups))


class Checker(HTMLParser):
    """Tags that are open, all tags and addresses, and the visible text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses, self.text = [], set(), [], ""

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "link"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_escapes_names_and_loads_nothing(hostile):
    page = as_html(hostile)
    checker = Checker()
    checker.feed(page)
    assert checker.open == [] and not checker.tags & {"script", "b" * 2, "img", "iframe", "object"}
    assert "<b>x</b>" not in page and "<script" not in page
    assert one_line(EVIL) in checker.text
    assert all(address.startswith(("data:", "#")) for address in checker.addresses)
    assert "@import" not in page and set(re.findall(r"url\((.)", page)) <= {"#"}
    assert page.count("<svg ") == len(hostile.panels)


def test_pictures_in_a_page_follow_its_colors(hostile):
    page = as_html(hostile)
    pictures = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    for picture in pictures:
        assert "var(--" in picture and not set(theme.css_variables().values()) & set(
            re.findall(r"#[0-9a-f]{6}", picture)
        )
    names = re.findall(r' id="([^"]+)"', page)
    assert {name.split("-")[0] for name in names} == {f"picture{index}" for index in range(len(pictures))}
    assert "prefers-color-scheme: dark" in page


def test_the_terminal_shows_names_as_text(hostile):
    sink = io.StringIO()
    print_document(Console(file=sink, width=400, force_terminal=True, color_system=None), hostile)
    assert "\x1b[31m" not in sink.getvalue() and "\x07" not in sink.getvalue()
    assert "[red]d[/red]" in sink.getvalue()


def test_the_text_report_shows_names_as_text(hostile):
    text = as_text(hostile)
    assert "\x1b" not in text and "\x07" not in text and "[red]d[/red]" in text


def test_json_is_strict_and_keeps_names(hostile):
    found = json.loads(as_json(hostile), parse_constant=pytest.fail)
    assert one_line(EVIL) in found["tables"]["Comparison"]["steps"]


def test_cells_of_the_csv_are_no_formulas(tmp_path):
    groups = [
        group(name, copy_run(tmp_path / str(index))) for index, name in enumerate(("=1+1", "@x", "plain"))
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(run_records(groups)))))
    assert [row["label"] for row in rows] == ["'=1+1", "'@x", "plain"]
    assert float(rows[0]["steps_per_second"]) == pytest.approx(2048 / (1.0 + 0.4 + 2.8), rel=0.05)
    assert rows[0]["wall_time_seconds"] and int(rows[0]["steps"]) == 12 * 2048


def test_pictures_show_names_as_text(hostile):
    report = hostile
    figure = theme.sheet(report.panels, title=report.headline, note=report.picture_note)
    theme.to_bytes(figure, "png")
    words = " ".join(text.get_text() for text in figure.findobj(Text))
    assert all(name[:15] in words for name in map(one_line, NAMES))


def test_the_command_survives_every_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = []
    for index, name in enumerate(NAMES):
        flags += ["--run", f"{name.replace('=', ' ')}={copy_run(tmp_path / str(index), machine=name)}"]
    assert main(flags) == 0
    assert "\x1b[31m" not in capsys.readouterr().out


def test_the_same_cells_are_in_every_rendering(twins):
    report = document(compare(twins))
    page, text = as_html(report), as_text(report)
    cells = [cell for row in report.tables[0].rows for cell in row.cells]
    assert [unescape(cell) for cell in re.findall(r"<td [^>]*>(.*?)</td>", page)] == cells
    for name, line, values in report.tables[0].rows:
        assert f'<th scope="row">{name}</th>' in page
        assert all(word in text for cell in (name, *line) for word in cell.split())
        assert len(line) == len(values) == len(twins)


def test_numbers_are_right_aligned_in_a_terminal(twins):
    lines = as_text(document(compare(twins))).splitlines()
    ends = [len(line) for line in lines if line.strip().startswith(("steps ", "peak memory", "CPU use"))]
    assert len(ends) == 3 and len(set(ends)) == 1


@pytest.mark.parametrize("junk", [None, [], {"a": {}}, "x", True, -1, 1e300, 10**40], ids=str)
@pytest.mark.parametrize("file", ["config.yaml", "run.json", "summary.json", "metrics.jsonl"])
def test_values_of_a_wrong_type_end_in_no_traceback(tmp_path, file, junk):
    """One run whose values are all wrong, against a good one."""
    path = copy_run(tmp_path / "bad")
    if file == "metrics.jsonl":
        bad = [
            dict.fromkeys(row, junk) | {"steps_global": row["steps_global"]} for row in read_rows(path / file)
        ]
        write_rows(path / file, bad)
    else:
        content = json.loads((path / file).read_text())
        wrong = {
            key: dict.fromkeys(value, junk) if isinstance(value, dict) else junk
            for key, value in content.items()
        }
        (path / file).write_text(json.dumps(wrong))
    try:
        groups = [group("bad", path), group("good", copy_run(tmp_path / "good"))]
    except InputError as error:
        assert "\n" not in str(error)
        return
    for chosen in (groups, groups[::-1]):
        report = document(compare(chosen))
        as_text(report), as_json(report), to_csv(run_records(chosen))


@pytest.mark.parametrize("digest", ["\ud800", "\x1b[2J"])
def test_a_hash_that_is_no_text_reaches_no_file(tmp_path, digest):
    path = copy_run(tmp_path / "run", columns={"policy_sha256": digest})
    text = to_csv(run_records([group("run", path)]))
    assert text.encode() and "\x1b" not in text
