import json

import numpy as np
import pytest
from matplotlib.legend import Legend
from matplotlib.text import Text
from run_writer import write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports import levels, levels_page, plot_command, theme
from parallel_ppo.reports.runs import Episodes, load_run


def write_episodes(path, rows):
    """Rows of step, level, success."""
    lines = [
        {"iteration": 1, "step": step, "env": 0, "return": 1.0, "length": 5, "level_seed": level,
        "success": success}
        for step, level, success in rows
    ]  # fmt: skip
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


ROWS = [
    (10, 7, False), (20, 7, False), (30, 8, True), (40, 8, False), (50, 9, True), (60, 8, False),
    (70, 7, False), (80, 10, False), (90, 9, False), (95, 9, True), (99, 10, True),
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return load_run(write_episodes(write_run(tmp_path / "run"), ROWS))


def test_which_levels_are_solved_how_often_and_when(run):
    found = {level.number: level for level in levels.levels_of(levels.known_levels(run))}
    assert (found[9].episodes, found[9].solved, found[9].first_solved, found[9].last_solved) == (3, 2, 50, 95)
    assert found[9].is_solved and not found[8].is_solved
    assert found[7].solved == 0 and np.isnan(found[7].first_solved)
    assert levels.failed_levels(run) == [7, 8, 10], "hardest first; half is not most"


def test_only_the_last_episodes_of_a_level_count(tmp_path):
    lost = [(step, 1, step <= 20) for step in range(1, 26)]
    won = [(step, 2, step > 2) for step in range(1, 6)]
    run = load_run(write_episodes(write_run(tmp_path / "run"), [*lost, *won]))
    assert levels.failed_levels(run) == [1]


def test_growth_and_the_map_equal_their_slow_twins(run):
    episodes = levels.known_levels(run)
    steps, seen, solved = levels.growth(episodes)
    for place, step in enumerate(steps):
        so_far = [row for row in ROWS if row[0] <= step]
        assert seen[place] == len({row[1] for row in so_far})
        assert solved[place] == len({row[1] for row in so_far if row[2]})
    ordered = levels.levels_of(episodes)
    shares, bounds = levels.solved_over_time(episodes, ordered, bins=3)
    assert bounds.tolist() == [0, 33, 66, 99]
    for row, level in enumerate(ordered):
        for column in range(3):
            inside = [
                success
                for step, number, success in ROWS
                if number == level.number and bounds[column] < step <= bounds[column + 1]
            ]
            expected = np.mean(inside) if inside else np.nan
            np.testing.assert_equal(shares[row, column], expected)


def test_plotting_one_run_writes_its_levels(tmp_path, run, capsys):
    assert plot_command.main([str(run.path)]) == 0
    page = (run.path / "plots" / "levels.html").read_text()
    assert "<details>" not in page, "few levels are all shown"
    assert "level 7" in page and "prefers-color-scheme" in page and "http" not in page.split("<style>")[0]
    assert (run.path / "plots" / "levels.png").stat().st_size > 10_000
    other = write_run(tmp_path / "other")
    assert plot_command.main([str(other)]) == 0
    assert not (other / "plots" / "levels.html").exists(), "its episodes do not tell"
    with pytest.raises(InputError, match="does not say which levels were solved"):
        levels.failed_levels(load_run(other))


def test_the_picture_names_levels_and_lines_beside_the_data(run):
    episodes = levels.known_levels(run)
    figure = levels_page.levels_figure(run, episodes, levels.levels_of(episodes), theme.LIGHT)
    theme.figure_bytes(figure, "png")
    assert [label.get_text() for label in figure.axes[2].get_yticklabels()] == ["7", "8", "10", "9"]
    assert "blank: not played" in figure.axes[2].get_xlabel() and not figure.findobj(Legend)
    width, height = figure.bbox.size
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        assert not text.get_text() or (box.x0 >= 0 and box.x1 <= 1.01 * width and box.y1 <= height), text


def test_many_levels_played_once_have_no_map(tmp_path):
    rows = [(step, step, step % 2 == 0) for step in range(1, 700)]
    run = load_run(write_episodes(write_run(tmp_path / "run"), rows))
    assert plot_command.main([str(run.path)]) == 0
    page = (run.path / "plots" / "levels.html").read_text()
    assert "199 levels with the best results not listed" in page
    shown, folded = page.split("<details><summary>480 more levels</summary>")
    assert shown.count('<th scope="row">level ') == 20 and folded.count('<th scope="row">level ') == 480


def test_what_is_not_known_is_left_out():
    nothing = np.array([np.nan, 3.0])
    episodes = Episodes(*(np.array([1.0, 2.0]) for _ in range(4)), nothing, np.array([1.0, 1.0]))
    run = type("Run", (), {"episodes": episodes})
    assert [level.number for level in levels.levels_of(levels.known_levels(run))] == [3]


def test_a_run_without_finished_episodes_says_so(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "episodes.jsonl").write_text("")
    with pytest.raises(InputError, match="none of its episodes has ended yet"):
        levels.failed_levels(load_run(path))
