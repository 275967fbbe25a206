import re
from html.parser import HTMLParser

from run_writer import write_run

from parallel_ppo.reports import html
from parallel_ppo.reports.comparison import compare
from parallel_ppo.reports.comparison_report import comparison_page
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.runs import load_run

VOID = {"meta", "link", "img", "source", "br"}


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "srcset", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(twins):
    page = comparison_page(twins, compare(twins))
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert len(checker.addresses) == 1 + 4 * 2, "the icon, and four panels in two themes"
    assert all(address.startswith("data:") for address in checker.addresses)
    assert "url(" not in page
    assert "@import" not in page
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page


def test_labels_cannot_inject_markup(tmp_path):
    names = ("<b>x</b>", '"quoted" & <script>')
    groups = [
        Group(name, (load_run(write_run(tmp_path / str(i), workers=i + 1)),)) for i, name in enumerate(names)
    ]
    page = comparison_page(groups, compare(groups))
    visible = re.sub(r"data:image[^\"]*", "", page)
    assert "<script" not in visible
    assert "<b>x</b>" not in visible


def test_empty_lists_leave_no_box():
    assert html.bullets("Notes", []) == ""


def test_on_a_narrow_page_every_cell_names_its_column():
    table = html.table(["", "a & b", "two"], [("speed", "1", "2")])
    assert 'data-column="a &amp; b">1</td>' in table
    assert "@media (max-width: 640px)" in html.STYLE
    assert "attr(data-column)" in html.STYLE
