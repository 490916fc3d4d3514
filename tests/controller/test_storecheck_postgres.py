"""What a check says of a store in PostgreSQL, on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("postgres", reason="needs tests/controller/postgres.py")

from sqlalchemy import create_engine, text

from ringstep.controller.findings import Verdict
from ringstep.controller.store import SCHEMA_VERSION
from ringstep.controller.storecheck import check_store


def run(url: str, *statements: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def look(url: str, now_s: float | None = None) -> list[tuple[Verdict, str, str]]:
    findings = check_store(url, 5.0, time.time() if now_s is None else now_s).findings
    return [(each.verdict, each.part, each.text) for each in findings]


TABLES = (
    "CREATE TABLE meta (key text, value text)",
    f"INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}')",
    "CREATE TABLE jobs (live boolean)",
    "INSERT INTO jobs VALUES (true), (false)",
    "CREATE TABLE switches (name text, address text, device_id text)",
    "INSERT INTO switches VALUES ('tor1', '10.0.0.1:9559', '18446744073709551615')",
    "CREATE TABLE leader (epoch bigint, address text)",
    "INSERT INTO leader VALUES (3, '10.0.0.7:9560')",
)


def test_an_empty_database_will_be_filled(postgres_server: Any) -> None:
    first, leader = look(postgres_server.new_database())
    assert first[0] is Verdict.OK
    assert "is empty, and will be filled at the first start" in first[2]
    assert leader == (Verdict.OK, "leader", "no controller leads now; this one will")


def test_a_store_in_use_is_described_and_not_changed(postgres_server: Any) -> None:
    url = postgres_server.new_database()
    run(url, *TABLES)
    report = check_store(url, 5.0, time.time())
    assert "1 live jobs" in report.findings[0].text
    assert "10.0.0.7:9560 leads, or led last (term 3)" in report.findings[1].text
    assert report.switches == {"tor1": ("10.0.0.1:9559", (1 << 64) - 1)}


def test_a_user_who_may_only_read_is_refused(postgres_server: Any) -> None:
    url = postgres_server.new_database()
    user = f"reader_{url.partition('?')[0].rpartition('/')[2]}"
    run(
        url,
        *TABLES,
        f"CREATE ROLE {user} LOGIN",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
    )
    findings = look(url.replace("ringstep@", f"{user}:pass-w0rd@"))
    assert findings[1][0] is Verdict.PROBLEM
    assert "its user may not write jobs, meta, switches; GRANT ALL ON" in findings[1][2]
    assert "pass-w0rd" not in str(findings)


def test_a_clock_that_differs_is_warned_of(postgres_server: Any) -> None:
    findings = look(postgres_server.new_database(), time.time() - 100)
    assert [each[:2] for each in findings][1] == (Verdict.WARNING, "clock")
    assert "+100 s from this machine's" in findings[1][2]


def test_a_database_that_is_not_there_is_said(postgres_server: Any) -> None:
    url = postgres_server.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    ((verdict, _, said),) = look(url.replace(name, "nothing", 1))
    assert verdict is Verdict.PROBLEM
    assert 'database "nothing" does not exist; create the database' in said
    ((verdict, _, said),) = look(url.replace("ringstep@", "nobody:pass-w0rd@"))
    assert verdict is Verdict.PROBLEM
    assert 'role "nobody" does not exist; mend its user or password' in said
    assert "pass-w0rd" not in said
