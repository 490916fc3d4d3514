"""docs/controller.md says what the code does: configuration, tokens, metrics, reasons, commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.core
import typer.main
from pydantic import BaseModel

from ringstep.cli.main import compose
from ringstep.controller.config import ControllerConfig, load_config
from ringstep.controller.metrics import LinkFacts, Metrics, SwitchFacts
from ringstep.controller.reasons import markdown_table
from ringstep.controller.security import ROLES
from ringstep.controller.tokens import Role, load_tokens
from ringstep.fabric.topology import load_topology, parse_topology

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "controller.md"
PAGES = {
    path: path.read_text()
    for path in (
        PAGE,
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in ("operators", "uec")),
    )
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`ringstep ((?:controller|switch|job|top|softswitch)\b[^`|]*)`")
_TEXT = PAGE.read_text()


def section(title: str) -> str:
    """The text of a section of the second level."""
    _, _, rest = _TEXT.partition(f"\n## {title}\n")
    assert rest, f"the page has no section {title!r}"
    return rest.partition("\n## ")[0]


def fences(text: str, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text) if kind == language]


# -- tables ------------------------------------------------------------------------------------


class Facts:
    """A fleet with one of everything."""

    def jobs_by_tenant(self) -> Mapping[str, int]:
        return {"default": 1}

    def leased_jobs(self) -> int:
        return 1

    def free_ids(self) -> int:
        return 1

    def quarantined_ids(self) -> int:
        return 1

    def switches(self) -> Sequence[SwitchFacts]:
        return [SwitchFacts("tor1", "in_sync", audited_unix_s=0.0)]

    def links(self) -> Sequence[LinkFacts]:
        return [LinkFacts("tor1:1", "spine1:1", 1)]

    def leading(self) -> bool:
        return True

    def epoch(self) -> int:
        return 1

    def store_queue(self) -> int:
        return 1


def metrics_table() -> str:
    """All metrics of Ringstep's own, as the page shows them."""
    metrics = Metrics(Facts(), version="1")
    metrics.take_snapshot()
    metrics.released("released")
    metrics.moved("link")
    metrics.call("Jobs.Get", "OK", 0.0)
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for family in metrics.registry.collect():
        if not family.name.startswith("ringstep_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels: dict[str, None] = {}
        for sample in family.samples:
            labels |= dict.fromkeys(sample.labels)
        labels.pop("le", None)
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |"
        )
    return "\n".join(rows) + "\n"


def test_page_lists_every_metric_with_its_labels_and_meaning() -> None:
    assert metrics_table() in section("Metrics and logs")


def test_page_lists_every_reason_of_a_refusal() -> None:
    assert markdown_table() in section("Errors")


def test_page_says_what_each_role_may_call() -> None:
    text = section("Security")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    for role in (Role.READER, Role.SCHEDULER):
        named = set(re.findall(r"`((?:Jobs|Switches)\.\w+)`", rows[role]))
        # Jobs.Report is reserved: the API has no such call yet.
        wanted = {
            method.removeprefix("/ringstep.v1.").replace("/", ".")
            for method, least in ROLES.items()
            if least is role and "ringstep.v1." in method and not method.endswith("/Report")
        }
        assert named == wanted


# -- files -------------------------------------------------------------------------------------


def tables(model: Any) -> Iterator[type[BaseModel]]:
    """All tables that a type of a field may hold."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        yield model
    for each in get_args(model):
        yield from tables(each)


def keys(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Keys of a configuration, with ``*`` for a name of one's own."""
    for name, field in model.model_fields.items():
        path = f"{before}{field.alias or name}"
        inner = list(tables(field.annotation))
        if not inner:
            yield path
        for each in inner:
            own = "*." if "dict" in str(field.annotation) else ""
            yield from keys(each, f"{path}.{own}")


def given(data: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from given(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _without_names(key: str) -> str:
    # A switch's own program has the keys of [pipeline]; uec and p4info exclude each other, so that
    # no one table holds all of them.
    key = re.sub(r"^pipeline\.switch\.[^.]+\.", "pipeline.", key)
    return re.sub(r"^(p4runtime\.switch|tenants)\.[^.]+\.", r"\1.", key)


def test_configuration_of_the_page_loads_and_has_every_key(tmp_path: Path) -> None:
    (text,) = fences(section("Configuration"), "toml")
    path = tmp_path / "controller.toml"
    path.write_text(text)
    load_config(path)
    shown = {_without_names(key) for key in given(tomllib.loads(text))}
    missing = {_without_names(key) for key in keys(ControllerConfig)} - shown
    assert not missing


def test_tokens_file_of_the_page_loads(tmp_path: Path) -> None:
    (text,) = fences(section("Security"), "toml")
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o640)
    assert [entry.role for entry in load_tokens(path).entries] == [Role.SCHEDULER]


def test_topologies_of_the_page_and_of_the_example_can_be_read() -> None:
    (text,) = fences(section("Topology file"), "toml")
    assert parse_topology(text, "fabric.toml").switches
    example = load_topology(ROOT / "examples" / "leaf-spine" / "topology.toml")
    assert {switch.p4runtime for switch in example.switches.values()} == {
        f"127.0.0.1:955{number}" for number in range(1, 5)
    }


# -- commands ----------------------------------------------------------------------------------


def command_lines(text: str) -> Iterator[list[str]]:
    """Commands of a shell block, without what is around them."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(" "):
            continue
        for inner in re.findall(r"\$\((ringstep [^)]*)\)", line):
            yield shlex.split(inner)[1:]
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words and words[0] == "ringstep":
            ends = [n for n, word in enumerate(words) if word in {"|", "&", "&&", ";", ">", "<"}]
            yield words[1 : min(ends, default=len(words))]


@cache
def everything() -> Any:
    """The command ``ringstep`` with all that is below it."""
    return typer.main.get_command(compose())


def resolve(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words that are left."""
    command = everything()
    rest = list(words)
    while rest and isinstance(command, typer.core.TyperGroup):
        assert rest[0] in command.commands, f"ringstep {' '.join(words)}: no {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_shell_blocks_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGSTEP_CONTROLLER", raising=False)
    seen = 0
    for kind, body in _FENCE.findall(PAGES[page]):
        if kind not in {"", "sh"}:
            continue
        for words in command_lines(body):
            # The simulator is a distribution of its own.
            if words[0] == "sim":
                continue
            command, rest = resolve(words)
            assert not isinstance(command, typer.core.TyperGroup), f"no command: {words}"
            try:
                command.make_context(words[0], rest)
            except Exception as error:
                pytest.fail(f"ringstep {' '.join(words)}: {error}")
            seen += 1
    assert seen or page != PAGE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_have_the_options_they_name(page: Path) -> None:
    for text in _INLINE.findall(PAGES[page]):
        words = shlex.split(text)
        command, rest = resolve(words)
        known = {
            name
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        unknown = [word for word in rest if word.startswith("--") and word not in known]
        assert not unknown, f"ringstep {text}: no option {', '.join(unknown)}"
