import numpy as np
import pytest
from matplotlib.legend import Legend
from matplotlib.text import Text
from run_writer import write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports import theme
from parallel_ppo.reports.command_line import directory_for
from parallel_ppo.reports.groups import group_seeds
from parallel_ppo.reports.plot_command import main
from parallel_ppo.reports.plots import OVER_STEPS, OVER_TIME, PANELS, curves_figure, panels_of
from parallel_ppo.reports.runs import load_run


def test_every_panel_shows_every_group(tmp_path):
    runs = [
        load_run(write_run(tmp_path / f"{workers}{seed}", workers=workers, seed=seed))
        for workers in (1, 2)
        for seed in (1, 2)
    ]
    figure = curves_figure(group_seeds(runs), over=OVER_TIME, smoothing=3)
    panels = figure.subfigs[1].axes
    assert len(panels) == len(PANELS) + 1
    for axes in panels[:-1]:
        assert len(axes.lines) == 4 + 2, "raw per run, mean per group"


def test_png_and_svg_over_steps_and_time(tmp_path, capsys):
    write_run(tmp_path / "a")
    assert main([str(tmp_path / "a")]) == 0
    names = {path.name for path in (tmp_path / "a" / "plots").iterdir()}
    assert names == {f"curves_over_{over}.{kind}" for over in ("steps", "time") for kind in ("png", "svg")}
    assert "wrote" in capsys.readouterr().out


def test_a_log_without_the_optional_columns(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"iteration": 1, "steps_global": 64, "loss": 1.0}\n')
    figure = curves_figure(group_seeds([load_run(log)]), over=OVER_STEPS, smoothing=5)
    theme.figure_bytes(figure, "png")


def test_wrong_flags_are_named(tmp_path):
    with pytest.raises(InputError, match="--smoothing"):
        main(["--smoothing", "0"])
    with pytest.raises(InputError, match="no run under"):
        main(["--runs-dir", str(tmp_path / "none")])


def test_units_of_time():
    assert theme.time_unit(100) == (1.0, "seconds")
    assert theme.time_unit(600) == (60.0, "minutes")
    assert theme.time_unit(10_000) == (3600.0, "hours")


def test_a_constant_curve_has_readable_ticks():
    axes = theme.new_figure(3, 3).subplots()
    axes.plot([0, 1], [0.01, 0.01 + 1e-15])
    theme.plain_numbers(axes)
    assert np.ptp(axes.get_ylim()) > 1e-3


def test_plots_lie_in_the_run_or_are_named_for_the_runs(tmp_path):
    runs = [tmp_path / name for name in ("a", "b", "deep/a")]
    chosen = [directory_for("plots", each) for each in ([runs[0]], [runs[1]], runs[:2], runs)]
    names = [str(path.relative_to(tmp_path)) for path in chosen]
    assert names == ["a/plots", "b/plots", "plots-a+b", "plots-a+b+deep_a"]


def test_a_name_that_a_terminal_could_obey_is_shown_as_it_is(tmp_path, capsys):
    write_run(tmp_path / "\x1b]0;owned\x07[bold]", iterations=1)
    assert main(["--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said
    assert said.count("\\x1b]0;owned\\x07[bold]") == 5, "the newest run, and the four files that were written"


def test_a_link_in_a_downloaded_run_leads_nowhere(tmp_path):
    run = write_run(tmp_path / "run", iterations=1)
    (run / "plots").symlink_to(tmp_path)
    with pytest.raises(InputError, match="--output-dir"):
        main([str(run)])
    (tmp_path / "victim").write_text("mine")
    (run / "picture.svg").symlink_to(tmp_path / "victim")
    theme.save(theme.new_figure(1, 1), run / "picture.svg")
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_picture_says_what_its_lines_are_and_covers_no_data(tmp_path):
    figure = curves_figure(group_seeds([load_run(write_run(tmp_path / "a"))]), over=OVER_STEPS, smoothing=3)
    theme.figure_bytes(figure, "png")
    words = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "Thin lines: each iteration" in words and "last 3 iterations" in words
    width, height = figure.bbox.size
    for legend in figure.findobj(Legend):
        box = legend.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width and box.y1 <= height
        for axes in figure.subfigs[1].axes:
            assert not box.shrunk(0.98, 0.9).overlaps(axes.get_window_extent())


def test_curiosity_has_panels_of_its_own_where_there_is_one(tmp_path):
    plain, curious = (load_run(write_run(tmp_path / name)) for name in ("plain", "curious"))
    curious.columns.update(
        dict.fromkeys(("intrinsic_reward", "predictor_loss"), curious.column("value_loss"))
    )
    assert panels_of(group_seeds([plain])) == PANELS
    found = panels_of(group_seeds([plain, curious]))
    assert [panel.column for panel in found[len(PANELS) :]] == ["intrinsic_reward", "predictor_loss"]
    figure = curves_figure(group_seeds([curious]), over=OVER_STEPS, smoothing=3)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "Loss of the predictor" in titles and len(titles) == len(found) + 1
