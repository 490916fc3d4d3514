from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringstep.hostlib.evaluate.report.chart import Bars, Box, Line, bars, boxes, heat, lines
from ringstep.hostlib.evaluate.report.frame import Frame, Style, Value
from ringstep.hostlib.evaluate.report.svg import FONT, Scale, text_width, ticks

FRAME = Frame("Title <&>", 'what "is" seen', "x, s", "y, ms")


def texts(svg: str) -> list[tuple[float, float, str, str]]:
    """Return upright texts: x, y, anchor, words."""
    return [
        (float(t.get("x", "")), float(t.get("y", "")), t.get("text-anchor", ""), t.text or "")
        for t in ElementTree.fromstring(svg).iter("text")
        if t.get("transform") is None
    ]


def overlaps(svg: str) -> list[tuple[str, str]]:
    """Return pairs of upright texts that touch, by the estimate of their widths."""
    found, spans = [], []
    for x, y, anchor, words in texts(svg):
        width = 0.85 * text_width(words)  # proportional fonts are narrower than the estimate
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        spans.append((left, left + width, y, words))
    for i, a in enumerate(spans):
        for b in spans[:i]:
            if a[0] < b[1] and b[0] < a[1] and abs(a[2] - b[2]) < 0.8 * FONT:
                found.append((a[3], b[3]))
    return found


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
@example(5e-324, 0.0)  # no number is so small that a tenth of it is another one
@example(0.0, 5e-324)
@example(-1e-310, 2e-310)
@example(1e6, 1e-3)
def test_ticks_are_round_and_span_the_values(low: float, more: float) -> None:
    at = ticks(low, low + more)
    slack = 1e-9 * max(abs(low), abs(low + more), 1.0)
    assert at[0] <= low + slack
    assert at[-1] >= low + more - slack
    assert 2 <= len(at) <= 9
    assert at == sorted(set(at))


def test_ticks_of_nothing_are_refused() -> None:
    for low, high in ((1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="no axis"):
            ticks(low, high)


def test_a_scale_ends_at_its_ends() -> None:
    scale = Scale(0, 10, 100, 0)
    assert [scale(v) for v in (-5, 0, 2.5, 10, float("inf"))] == [100, 100, 75, 0, 0]
    assert scale.holds(10)
    assert not scale.holds(10.1)


def test_bars_stand_where_their_values_are() -> None:
    svg = bars(FRAME, ["a", "b"], [Bars("one", Style(0), [Value(1.0, 0.5, 2.0), Value(2.0)])])
    root = ElementTree.fromstring(svg)
    heights = [float(r.get("height", "")) for r in root.iter("rect") if r.find("title") is not None]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.02)
    tips = [t.text for r in root.iter("rect") for t in r.iter("title")]
    assert tips == ["one, a: 1 (0.5 … 2)", "one, b: 2"]


def test_a_bar_below_zero_hangs_from_it() -> None:
    svg = bars(FRAME, ["a", "b"], [Bars("one", Style(0), [Value(1.0), Value(-1.0)])])
    up, down = (r for r in ElementTree.fromstring(svg).iter("rect") if r.find("title") is not None)
    zero = float(up.get("y", "")) + float(up.get("height", ""))
    assert float(down.get("y", "")) == pytest.approx(zero, abs=0.02)


def test_labels_of_many_categories_do_not_touch() -> None:
    for names in (
        ["history", "contention", "topology", "size", "collective", "configuration",
         "NCCL's choice", "gpu"],
        ["escalating, 1st", "escalating, 2nd", "de-escalating, 1st", "de-escalating, 2nd",
         "ending, 1st", "ending, 2nd"],
        ["ResNet-50", "BERT", "NanoGPT", "DLRM", "GPT-2 Medium", "ViT-Large"],
    ):  # fmt: skip
        series = [Bars(f"policy number {i}", Style(i), [Value(0.5)] * len(names)) for i in range(8)]
        assert overlaps(bars(FRAME, names, series, [0.5] * len(names))) == []


def test_legends_break_into_rows_within_the_chart() -> None:
    names = [f"a policy of a long name {i}" for i in range(9)]
    svg = bars(FRAME, ["x"], [Bars(n, Style(0), [Value(1.0)]) for n in names])
    assert overlaps(svg) == []
    assert all(x + text_width(words) < 605 for x, _, a, words in texts(svg) if a == "start")


def test_what_is_cut_is_an_arrow_with_its_number() -> None:
    frame = Frame("t", "a", "x", "y", limits=(-0.5, 1.0), show=lambda v: f"{100 * v:.0f} %")
    svg = bars(frame, ["a"], [Bars("far", Style(0), [Value(-14.2, -27.0, -3.0)])])
    assert ">-1420 %</text>" in svg
    assert 'class="whisker"' not in svg
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"', svg)]
    assert max(heights) < 320


def test_lines_break_where_values_are_missing() -> None:
    svg = lines(FRAME, [Line("one", Style(0), range(5), [1.0, 2.0, None, 3.0, 4.0])],
                events=[(2.0, "onset")], dots={"one": 3.0})  # fmt: skip
    root = ElementTree.fromstring(svg)
    assert len([p for p in root.iter("path") if p.get("class") == "line"]) == 2
    assert len(list(root.iter("circle"))) == 1


def test_a_band_lies_between_its_ends() -> None:
    svg = lines(FRAME, [Line("one", Style(0), [0, 1], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])])
    assert len(re.findall("fill-opacity:.18", svg)) == 1


def test_a_line_of_one_point_is_drawn() -> None:
    ElementTree.fromstring(lines(FRAME, [Line("one", Style(0), [1], [0.3])]))


def test_heat_maps_write_each_value_and_tell_signs_apart() -> None:
    svg = heat(FRAME, ["r1", "r2"], ["c1", "c2"], [[0.5, -0.5], [None, 0.0]])
    words = [w for _, _, _, w in texts(svg)]
    assert {"0.5", "-0.5", "0", "r1", "c2"} <= set(words)
    assert "r2, c1: not measured" in svg
    fills = dict(
        re.findall(r'style="fill:(#\w+)"><title>(r1, c\d)', svg)[i][::-1] for i in range(2)
    )
    assert fills["r1, c1"] != fills["r1, c2"]
    assert overlaps(svg) == []


def test_boxes_show_five_percentiles() -> None:
    svg = boxes(FRAME, [Box("a long name of a policy", Style(0), (1, 2, 3, 4, 5)),
                        Box("another", Style(1), (2, 2, 2, 2, 2))])  # fmt: skip
    assert "a long name of a policy: 1, 2, 3, 4, 5" in svg
    assert overlaps(svg) == []
