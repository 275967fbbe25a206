"""What the curves show, and where their files go."""

import json

import numpy as np
import pytest
from matplotlib.legend import Legend

from parallel_ppo.exits import InputError
from parallel_ppo.reports import theme
from parallel_ppo.reports.command_line import directory_for
from parallel_ppo.reports.comparison import compare
from parallel_ppo.reports.comparison_report import document
from parallel_ppo.reports.groups import group_seeds
from parallel_ppo.reports.plot_command import main
from parallel_ppo.reports.plots import RETURN_LABEL, over_time, panels_of
from parallel_ppo.reports.runs import load_run
from tests.reports.conftest import group
from tests.reports.run_copies import copy_run

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies


def drawn(panel):
    """The axes of a panel."""
    with theme.drawing():
        figure = theme.panel_figure(panel)
        theme.to_bytes(figure, "png")
        return figure.axes[0]


def panel_named(panels, name):
    return next(panel for panel in panels if panel.name == name)


def seeds_of(tmp_path, number, **changes):
    return [
        load_run(copy_run(tmp_path / f"{number}-{seed}", seed=seed, **changes))
        for seed in range(1, number + 1)
    ]


def test_every_panel_of_a_real_run_has_data(real_run):
    """A metric that is renamed in the trainers leaves its panel empty."""
    panels = panels_of(group_seeds([load_run(real_run)]))
    assert len(panels) == 11
    for panel in panels:
        axes = drawn(panel)
        assert axes.lines or axes.patches, panel.name
        assert not any("no " in text.get_text() for text in axes.texts), panel.name


def test_no_cell_of_a_comparison_of_real_runs_is_unknown(real_run):
    """As above, for the columns that the table needs. CPU use has no sample in so short a run."""
    groups = [group("a", real_run), group("b", real_run)]
    (table,) = document(compare(groups)).tables
    for name, cells, _ in table.rows:
        assert "-" not in cells or name in ("CPU use", "speedup"), name
        assert not any("unknown" in cell for cell in cells), name


@pytest.mark.parametrize(("seeds", "thin", "bands"), [(1, 1, 0), (4, 4, 0), (5, 0, 1)])
def test_seeds_are_lines_below_five_and_a_band_from_five_on(tmp_path, seeds, thin, bands):
    groups = group_seeds(seeds_of(tmp_path, seeds))
    for name in ("return", "return_over_time", "throughput", "entropy"):
        axes = drawn(panel_named(panels_of(groups), name))
        assert (len(axes.lines), len(axes.collections)) == (thin + 1, bands), name


def test_throughput_of_a_comparison_is_a_mean_over_seeds(tmp_path):
    groups = [group(name, *[run.path for run in seeds_of(tmp_path / name, 5)]) for name in "ab"]
    axes = drawn(panel_named(document(compare(groups)).panels, "throughput"))
    assert (len(axes.lines), len(axes.collections)) == (2, 2)


def test_live_evaluation_is_drawn_on_both_kinds_of_levels(tmp_path, real_run):
    curious = load_run(copy_run(tmp_path / "a", columns={"eval_test_return": 3.0, "intrinsic_reward": 1.0}))
    panels = panels_of(group_seeds([curious]))
    axes = drawn(panel_named(panels, "evaluation"))
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["training levels", "unseen levels"]
    assert any(line.get_ydata()[0] == 3.0 for line in axes.lines if len(line.get_ydata()))
    assert panel_named(panels, "intrinsic_reward")
    plain = load_run(real_run)
    assert not any(panel.name == "intrinsic_reward" for panel in panels_of(group_seeds([plain])))
    for name in [name for name in plain.columns if name.startswith("eval_")]:
        del plain.columns[name]
    assert not any(panel.name == "evaluation" for panel in panels_of(group_seeds([plain])))


def test_axes_name_their_content_and_unit(tmp_path):
    groups = [group("a", copy_run(tmp_path / "a", rollout=0.002, learn=0.006, coordinator=0.0))]
    panels = panels_of(groups)
    assert panel_named(panels, "return").title == RETURN_LABEL == "Return (last 100 training episodes)"
    assert panel_named(panels, "entropy").title == "Entropy (nats)"
    assert over_time(groups).unit == "milliseconds"
    assert "milliseconds" in drawn(panel_named(panels, "return_over_time")).get_xlabel()
    assert drawn(panel_named(panels, "phases")).get_xlabel() == "milliseconds per 1,000 environment steps"
    groups.append(group("b", copy_run(tmp_path / "b")))
    returns = panel_named(document(compare(groups)).panels, "return_over_time")
    assert drawn(returns).get_ylabel() == RETURN_LABEL
    assert [theme.time_unit(seconds)[1] for seconds in (0.5, 100, 600, 10_000)] == [
        "milliseconds", "seconds", "minutes", "hours"
    ]  # fmt: skip


def test_colors_of_series_and_phases_are_apart():
    grays = [gray for _, gray in theme.PHASES.values()]
    assert not set(theme.SERIES) & {*grays, theme.TEXT, theme.MUTED}
    for gray in grays:
        red, green, blue = (int(gray[place : place + 2], 16) for place in (1, 3, 5))
        assert max(red, green, blue) - min(red, green, blue) < 32, "a gray"


def test_one_sheet_as_png_or_a_pdf_for_each_panel(tmp_path, capsys):
    run = copy_run(tmp_path / "a")
    assert main([str(run)]) == 0
    assert [path.name for path in (run / "plots").iterdir()] == ["curves.png"]
    assert main([str(run), "--format", "pdf", "--output-dir", str(tmp_path / "pdf")]) == 0
    content = (tmp_path / "pdf" / "return_over_time.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/Type3" not in content
    assert b"MediaBox [ 0 0 237.6 " in content, "3.3 inches are 237.6 points"
    assert "wrote" in capsys.readouterr().out


def test_a_log_without_the_optional_columns(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"iteration": 1, "steps_global": 64, "loss": 1.0}\n')
    groups = group_seeds([load_run(log)])
    theme.to_bytes(theme.sheet(panels_of(groups), title="", columns=3), "png")


def test_a_constant_curve_has_readable_ticks():
    axes = theme.new_figure(3, 3).subplots()
    axes.plot([0, 1], [0.01, 0.01 + 1e-15])
    theme.plain_numbers(axes)
    assert np.ptp(axes.get_ylim()) > 1e-3


def test_plots_are_written_to_the_run_or_named_after_the_runs(tmp_path):
    runs = [tmp_path / name for name in ("a", "b", "deep/a")]
    chosen = [directory_for("plots", each) for each in ([runs[0]], [runs[1]], runs[:2], runs)]
    names = [str(path.relative_to(tmp_path)) for path in chosen]
    assert names == ["a/plots", "b/plots", "plots-a+b", "plots-a+b+deep_a"]


def test_a_name_with_escape_sequences_is_printed_as_text(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(theme, "save", lambda _figure, path: path)
    copy_run(tmp_path / "\x1b]0;owned\x07[bold]", iterations=2)
    assert main(["--runs-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed
    assert printed.count("\\x1b]0;owned\\x07[bold]") == 2, "the newest run, and the file"


def test_a_link_in_a_downloaded_run_leads_nowhere(tmp_path):
    run = copy_run(tmp_path / "run", iterations=2)
    (run / "plots").symlink_to(tmp_path)
    with pytest.raises(InputError, match="--output-dir"):
        main([str(run)])
    (tmp_path / "victim").write_text("mine")
    (run / "picture.png").symlink_to(tmp_path / "victim")
    theme.save(theme.new_figure(1, 1), run / "picture.png")
    assert (tmp_path / "victim").read_text() == "mine"


def test_legends_are_inside_the_picture_and_off_the_curves(real_run):
    panels = panels_of(group_seeds([load_run(real_run)]))
    figure = theme.sheet(panels, title="x", columns=3)
    theme.to_bytes(figure, "png")
    width, _ = figure.bbox.size
    for legend in figure.findobj(Legend):
        box = legend.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0


def test_runs_that_learn_differently_are_not_pooled(tmp_path):
    plain = load_run(copy_run(tmp_path / "a", seed=1))
    for name, change in {"b": {"curiosity__kind": "rnd"}, "c": {"training__gamma": 0.5}}.items():
        other = load_run(copy_run(tmp_path / name, seed=2, **change))
        assert len(group_seeds([plain, other])) == 2
    assert json.dumps(plain.config)
