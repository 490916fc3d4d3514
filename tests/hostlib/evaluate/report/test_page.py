"""The page holds every figure, says what is missing, and needs nothing but itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ringstep.hostlib.evaluate.report import html, markdown
from ringstep.hostlib.evaluate.report.build import build
from ringstep.hostlib.evaluate.report.read import read
from ringstep.hostlib.evaluate.report.shape import Result

Save = Callable[..., Path]
CHARTED = {
    "detection": "detection", "false_reconfigurations": "spikes", "onsets": "onsets",
    "transitions": "transitions", "rules": "rules", "sizes": "sizes",
    "distributions": "distributions", "workloads": "workloads", "nodes": "scaling",
    "workload_training": "trained", "attribution": "attribution",
}  # fmt: skip


def page(*paths: Path) -> str:
    return html.render(build(read(paths)))


def sections(text: str) -> dict[str, str]:
    return dict(re.findall(r'<section id="([^"]+)">(.*?)</section>', text, re.DOTALL))


def charts(text: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


class Balance(HTMLParser):
    """Fails on an end tag that ends nothing."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_figure_of_section_5_has_its_place(result: dict[str, Any], save: Save) -> None:
    text = page(save(result))
    for figure in (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18):
        assert re.search(rf"<h2>[^\n]*Fig\. {figure}\b", text), figure
    for name, section in sections(text).items():
        if name not in ("found", "goals", "cost", "made", "limits"):
            assert charts(section), name
        assert "Not measured" not in section


def test_charts_are_valid_and_told_in_words(result: dict[str, Any], save: Save) -> None:
    found = charts(page(save(result)))
    assert len(found) > 20
    for chart in found:
        root = ElementTree.fromstring(chart)
        assert root.tag == "svg"
        title, alt = root.find("title"), root.find("desc")
        assert title is not None
        assert title.text
        assert alt is not None
        assert alt.text
        assert root.get("aria-label") == title.text
        assert "nan" not in chart
        assert "inf" not in re.sub(r">[^<]*<", "><", chart)


def test_the_page_needs_nothing_but_itself(result: dict[str, Any], save: Save) -> None:
    text = page(save(result))
    for word in ("http", "<script", "<link", "@import", "url(", "<img"):
        assert word not in text
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) == set(ids)


def test_numbers_are_those_of_the_file(result: dict[str, Any], save: Save) -> None:
    text = page(save(result))
    found = sections(text)
    for level, gain in result["gains"]["dynamic"].items():
        if level == "0":
            continue
        low, value, high = (
            f"{100 * gain['gain_vs_nccl'][k]:.1f}" for k in ("low", "value", "high")
        )
        assert f"<td>{value} % ({low} … {high})</td>" in found["latency"]
    assert "0.207 ms (0.197 … 0.217)" in found["cost"]
    assert "<td>99.3 %</td>" in found["training-detector"]
    assert "<td>40.0 %</td>" in found["attribution"]
    assert "\N{MINUS SIGN}21.0 % (\N{MINUS SIGN}26.0 … \N{MINUS SIGN}16.0)" in found["latency"]
    assert "118 (114 … 122)" in found["trained"]
    assert "<td>21.9</td>" in found["trained"]  # less than NCCL's 151 ms


def test_the_papers_numbers_and_misses_are_shown(result: dict[str, Any], save: Save) -> None:
    whole = sections(page(save(result)))
    goals, found = whole["goals"], whole["found"]
    assert goals.count('class="w yes"') == 9
    assert goals.count('class="w no"') == 6
    assert "29.1 %; 36 % in the fair regime" in goals
    assert "9 of 15 goals were reached, 6 missed." in found
    assert "less median latency than NCCL&#x27;s choice at 80&nbsp;%" in found


def test_the_summary_follows_the_data(result: dict[str, Any], save: Save) -> None:
    def summary(data: dict[str, Any]) -> str:
        return sections(page(save(data)))["found"].replace("&nbsp;", " ")

    first = summary(result)
    assert "worse at 80 %" in first
    assert "mean latency: ahead at 70 %, 80 %, 90 %; not told apart at 50 %" in first
    assert "threshold rule, trial 5.4 % (0.4 … 10.4)" in first
    other = copy.deepcopy(result)
    other["versus_autoccl"]["dynamic"]["fair"]["0.8"]["gain"] = {
        "value": 0.3, "low": 0.2, "high": 0.4}  # fmt: skip
    other["gains"]["dynamic"]["0.8"]["gain_vs_nccl"] = {"value": -0.1, "low": -0.3, "high": 0.1}
    other["gains"]["bandit"]["0.8"]["mean_gain"] = {"value": 0.6, "low": 0.5, "high": 0.7}
    second = summary(other)
    assert "better at 70 %, 80 %, 90 %" in second
    assert "takes 10.0 % (\N{MINUS SIGN}10.0 … 30.0) more time than with NCCL" in second
    assert "bandit (UCB) 60.0 % (50.0 … 70.0)" in second
    assert "ahead at 70 %, 90 %; behind at 80 %" in second


@pytest.mark.parametrize("key", sorted(CHARTED))
def test_a_missing_key_is_said_where_it_belongs(
    result: dict[str, Any], save: Save, key: str
) -> None:
    del result[key]
    whole = sections(page(save(result)))
    assert whole[CHARTED[key]].count("Not measured in this environment: fluid.") == 1
    assert not any("Not measured" in s for n, s in whole.items() if n != CHARTED[key])


def test_any_one_key_is_enough(result: dict[str, Any], save: Save) -> None:
    for key in Result.__annotations__:
        if key in ("about", "seeds"):
            continue
        text = page(save({key: result[key]}))
        for chart in charts(text):
            ElementTree.fromstring(chart)
        assert "Not measured in this environment: fluid." in text


def test_environments_stand_side_by_side(result: dict[str, Any], save: Save) -> None:
    other = copy.deepcopy(result)
    other["about"]["environment"] = "engine"
    other["gains"]["dynamic"]["0.8"]["gain_vs_nccl"] = {"value": 0.41, "low": 0.37, "high": 0.45}
    del other["sizes"]
    found = sections(page(save(result), save(other, "engine.json")))
    head = '<th scope="col">fluid</th><th scope="col">engine</th>'
    assert head in found["goals"]
    row = next(r for r in found["goals"].splitlines() if "NCCL&#x27;s choice at 80" in r)
    assert "<td>28.8 % (23.8 … 33.8)</td><td>41.0 % (37.0 … 45.0)</td>" in row
    assert '<td class="w no">missed</td><td class="w yes">reached</td>' in row
    assert "Mean gain by policy (engine)" in found["rivals"]
    assert "Not measured in this environment: engine." in found["sizes"]
    assert len(charts(found["rivals"])) == 2


def test_environments_of_one_name_are_told_apart(result: dict[str, Any], save: Save) -> None:
    names = [m.name for m in read([save(result), save(result, "b.json"), save(result, "c.json")])]
    assert names == ["fluid", "fluid (2)", "fluid (3)"]


def test_words_of_a_file_are_escaped(result: dict[str, Any], save: Save) -> None:
    result["about"]["words"] = "a <b>bold</b> & 'quoted' word"
    result["about"]["commands"] = ["cat <in >out"]
    path = save(result)
    text = page(path)
    assert "<b>" not in text
    assert "a &lt;b&gt;bold&lt;/b&gt; &amp; &#x27;quoted&#x27; word" in text
    assert "a \\<b>bold\\</b> & 'quoted' word" in markdown.render(build(read([path])))


def test_markdown_has_the_same_tables(result: dict[str, Any], save: Save) -> None:
    document = build(read([save(result)]))
    text, other = markdown.render(document), html.render(document)
    assert text.count("\n|---") == other.count("<table>")
    assert "| share of the oracle's gain at 80 % | 58.1 % (53.1 … 63.1) |" in text
    for line in text.splitlines():
        if line.startswith("|---"):
            width = line.count("|")
        elif line.startswith("| ") and "width" in locals():
            assert line.count("|") >= 3
    assert "```sh\nringstep tuner train detector" in text


def test_null_is_said_in_words(result: dict[str, Any], save: Save) -> None:
    result["detection"]["dynamic"]["0.5"].update(
        median={"value": None, "low": 9.0, "high": None, "n": 12}, p90=None, found=0.25
    )
    result["gains"]["dynamic"]["0.5"]["share_of_oracle"] = {
        "value": None, "low": None, "high": None, "n": 12}  # fmt: skip
    text = page(save(result))
    found = sections(text)
    assert "never (9 … never)" in found["detection"]
    assert "beyond the episode" in found["detection"]
    assert any(">never</text>" in chart for chart in charts(found["detection"]))
    assert "nothing to gain" in found["oracle"]
    for chart in charts(text):
        ElementTree.fromstring(chart)


def test_values_beyond_an_axis_are_arrows_with_numbers(result: dict[str, Any], save: Save) -> None:
    section = sections(page(save(result)))["rivals"]
    assert section.count("\N{MINUS SIGN}226 %</text>") == 1
