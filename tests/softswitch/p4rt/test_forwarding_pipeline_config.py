"""SetForwardingPipelineConfig and GetForwardingPipelineConfig."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4i, p4r
from p4rt_rig import NAMES, Client, Rig, entry, exact, load_json, load_p4info

Set = p4r.SetForwardingPipelineConfigRequest
Get = p4r.GetForwardingPipelineConfigRequest


def config(cookie: int | None = None) -> p4r.ForwardingPipelineConfig:
    made = p4r.ForwardingPipelineConfig(p4info=load_p4info(), p4_device_config=load_json())
    if cookie is not None:
        made.cookie.cookie = cookie
    return made


def set_error(
    client: Client, action: int, given: p4r.ForwardingPipelineConfig | None, **kw: object
) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        client.set_config(action, given, **kw)  # type: ignore[arg-type]
    return caught.value


def one_entry() -> p4r.Entity:
    return entry("l2", [exact(1, 1)], NAMES.does("forward", 1))


def test_before_any_config_the_reply_has_none(rig: Rig) -> None:
    assert not rig.client().get_config().HasField("config")


def test_commit_makes_the_pipeline_run(rig: Rig) -> None:
    client = rig.primary(1)
    client.set_config(Set.VERIFY_AND_COMMIT, config(5))
    assert rig.switch.pipeline is not None
    assert client.get_config().config == config(5)


@pytest.mark.parametrize(
    ("kind", "p4info", "device_config"),
    [
        (Get.ALL, True, True),
        (Get.COOKIE_ONLY, False, False),
        (Get.P4INFO_AND_COOKIE, True, False),
        (Get.DEVICE_CONFIG_AND_COOKIE, False, True),
    ],
)
def test_response_types(client: Client, kind: int, p4info: bool, device_config: bool) -> None:
    found = client.get_config(kind).config
    assert found.cookie.cookie == 77
    assert found.HasField("p4info") == p4info
    assert bool(found.p4_device_config) == device_config


def test_cookie_left_out_stays_out(rig: Rig) -> None:
    client = rig.primary(1)
    client.set_config(Set.VERIFY_AND_COMMIT, config())
    assert not client.get_config().config.HasField("cookie")


def test_verify_changes_nothing(client: Client, rig: Rig) -> None:
    client.insert(one_entry())
    running = rig.switch.pipeline
    client.set_config(Set.VERIFY, config(6))
    assert client.get_config().config.cookie.cookie == 77
    assert rig.switch.pipeline is running
    assert len(client.read(entry("l2"))) == 1


def test_commit_of_a_new_config_clears_state(client: Client) -> None:
    client.insert(one_entry())
    client.set_config(Set.VERIFY_AND_COMMIT, config(6))
    assert client.read(entry("l2")) == []


def test_saved_config_takes_writes_and_runs_at_commit(client: Client, rig: Rig) -> None:
    client.insert(one_entry())
    running = rig.switch.pipeline
    client.set_config(Set.VERIFY_AND_SAVE, config(6))
    assert rig.switch.pipeline is running
    assert client.get_config().config.cookie.cookie == 6
    assert client.read(entry("l2")) == []
    client.insert(entry("l2", [exact(1, 9)], NAMES.does("forward", 2)))
    client.set_config(Set.COMMIT, None)
    assert rig.switch.pipeline is not running
    [kept] = client.read(entry("l2"))
    assert kept.table_entry.match[0].exact.value == b"\x09"


def test_saving_twice_and_pushing_over_a_saved_config_work(client: Client) -> None:
    client.set_config(Set.VERIFY_AND_SAVE, config(6))
    client.set_config(Set.VERIFY_AND_SAVE, config(7))
    client.set_config(Set.VERIFY_AND_COMMIT, config(8))
    assert client.get_config().config.cookie.cookie == 8
    assert set_error(client, Set.COMMIT, None).code() is grpc.StatusCode.NOT_FOUND


def test_commit_without_a_saved_config_is_not_found(client: Client) -> None:
    error = set_error(client, Set.COMMIT, None)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "VERIFY_AND_SAVE" in error.details()


def test_commit_with_a_config_is_invalid(client: Client) -> None:
    client.set_config(Set.VERIFY_AND_SAVE, config(6))
    assert set_error(client, Set.COMMIT, config()).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_reconcile_is_unimplemented_and_says_why(client: Client) -> None:
    error = set_error(client, Set.RECONCILE_AND_COMMIT, config())
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "VERIFY_AND_COMMIT" in error.details()


def test_unspecified_action_is_invalid(client: Client) -> None:
    assert set_error(client, Set.UNSPECIFIED, config()).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_checks_device_then_role_then_primary(rig: Rig) -> None:
    client = rig.client(3)
    cases: list[tuple[dict[str, object], grpc.StatusCode]] = [
        ({"device_id": 7, "role": "x"}, grpc.StatusCode.NOT_FOUND),
        ({"role": "x"}, grpc.StatusCode.NOT_FOUND),
        ({}, grpc.StatusCode.PERMISSION_DENIED),
    ]
    for fields, code in cases:
        assert set_error(client, Set.VERIFY, config(), **fields).code() is code


def broken(change: str) -> p4r.ForwardingPipelineConfig:
    made = config(9)
    tables = {one.preamble.alias: one for one in made.p4info.tables}
    match change:
        case "no p4info":
            made.ClearField("p4info")
        case "no device config":
            made.p4_device_config = b""
        case "not text":
            made.p4_device_config = b"\xff\xfe"
        case "not json":
            made.p4_device_config = b"bad {"
        case "table missing in json":
            tables["l2"].preamble.name = "EntitiesIngress.other"
        case "other key width":
            tables["l2"].match_fields[0].bitwidth = 47
        case "other match kind":
            tables["l2"].match_fields[0].match_type = p4i.MatchField.LPM
        case "key field missing":
            del tables["acl"].match_fields[2]
        case "other parameter width":
            made.p4info.actions[2].params[0].bitwidth = 8
        case "counter size":
            made.p4info.counters[0].size = 17
        case "two objects with one id":
            made.p4info.tables[1].preamble.id = made.p4info.tables[0].preamble.id
        case "id zero":
            made.p4info.tables[0].preamble.id = 0
        case "unknown match kind":
            tables["l2"].match_fields[0].other_match_type = "fuzzy"
        case "packet header not in bytes":
            made.p4info.controller_packet_metadata[0].metadata[0].bitwidth = 10
        case "no width":
            tables["l2"].match_fields[0].bitwidth = 0
        case "action of another table":
            ref = tables["l2"].action_refs.add()
            ref.CopyFrom(tables["settings"].action_refs[0])
        case "unknown action":
            tables["l2"].action_refs.add(id=0x01FFFFFF)
        case "unknown profile":
            tables["l2"].implementation_id = 0x11FFFFFF
        case _:
            raise AssertionError(change)
    return made


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("no p4info", "p4info is missing"),
        ("no device config", "p4_device_config is empty"),
        ("not text", "not BMv2 JSON"),
        ("not json", "cannot be realized"),
        ("table missing in json", "EntitiesIngress.other"),
        ("other key width", "EntitiesIngress.l2"),
        ("other match kind", "EntitiesIngress.l2"),
        ("key field missing", "EntitiesIngress.acl"),
        ("other parameter width", "forward"),
        ("counter size", "per_port"),
        ("two objects with one id", "same id"),
        ("id zero", "id 0"),
        ("unknown match kind", "fuzzy"),
        ("packet header not in bytes", "packet_"),
        ("action of another table", "EntitiesIngress.set_seed"),
        ("no width", "no bit width"),
        ("unknown action", "action"),
        ("unknown profile", "action profile"),
    ],
)
def test_refused_config_leaves_the_running_one_alone(
    client: Client, rig: Rig, change: str, word: str
) -> None:
    client.insert(one_entry())
    running = rig.switch.pipeline
    for action in (Set.VERIFY, Set.VERIFY_AND_SAVE, Set.VERIFY_AND_COMMIT):
        error = set_error(client, action, broken(change))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert word in error.details()
    assert rig.switch.pipeline is running
    assert client.get_config().config.cookie.cookie == 77
    assert len(client.read(entry("l2"))) == 1


def test_config_missing_is_invalid(client: Client) -> None:
    error = set_error(client, Set.VERIFY_AND_COMMIT, None)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "config is missing" in error.details()


def test_get_names_an_unknown_device(rig: Rig) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rig.client().stub.GetForwardingPipelineConfig(Get(device_id=3))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
