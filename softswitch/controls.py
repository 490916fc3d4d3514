"""Ingress and egress as Python: tables, conditionals, and the actions where tables dispatch."""

from __future__ import annotations

from ringstep.softswitch.controlflow import meeting_points
from ringstep.softswitch.errors import UnsupportedConstruct
from ringstep.softswitch.expressions import Value, constant
from ringstep.softswitch.model import Action, Conditional, Control, If, Statement, TableDef
from ringstep.softswitch.pyir import Assign, Body, Branch, Effect, Leave, Once, Take
from ringstep.softswitch.scope import Scope, choose
from ringstep.softswitch.statements import Statements
from ringstep.softswitch.tables import GROUP_TAG

MAX_NODES = 20000
"""Most control nodes in generated code. Nodes behind branches that do not meet are copied, and a
program in which that gets out of hand is refused."""


class ControlGenerator:
    """Translates the control `control` of one program."""

    def __init__(self, scope: Scope, statements: Statements, control: Control) -> None:
        self._scope = scope
        self._statements = statements
        self._current = control
        self._meeting = meeting_points(control)
        self._nodes_emitted = 0

    def generate(self) -> Body:
        """Runs the control from its first node to its end."""
        body = self._sequence(self._current.start, None)
        if any(_may_exit(a.body) for a in self._scope.program.actions.values()):
            return [Assign(self._scope.exit_flag(), "0"), Once(body)]
        return body

    def _sequence(self, name: str | None, stop: str | None) -> Body:
        """All nodes from `name` up to, and without, `stop`."""
        body: Body = []
        while name is not None and name != stop:
            self._nodes_emitted += 1
            if self._nodes_emitted > MAX_NODES:
                raise UnsupportedConstruct(
                    "a control whose branches hardly ever meet", f"in {self._current.name}"
                )
            node = self._current.nodes[name]
            meeting = self._meeting[name]
            if isinstance(node, Conditional):
                condition = self._scope.expr.condition(node.condition, (), node.where)
                body.extend(
                    choose(
                        condition,
                        self._sequence(node.true_next, meeting),
                        self._sequence(node.false_next, meeting),
                    )
                )
            else:
                body.extend(self._table(node, meeting))
            name = meeting
        return body

    def _table(self, table: TableDef, meeting: str | None) -> Body:
        default = table.default_action_id
        if not table.keys and table.default_is_const and default is not None:
            action = self._scope.program.actions[default]
            values = tuple(constant(v) for v in table.default_args)
            following = table.next_miss
            if table.next_by_action is not None:
                following = table.next_by_action.get(action.name, table.base_default_next)
            return [*self._action(action, values), *self._sequence(following, meeting)]
        body: Body = [Effect(f"record = {self._lookup(table)}")]
        if table.next_by_action is None:
            default_record = self._scope.bind("table.default", table.name, f"DEF_{table.name}")
            body.append(Effect(f"hit = record is not {default_record}[0]"))
        if table.kind == "indirect_ws":
            body.append(self._pick_member(table))
        if table.direct_counter is not None:
            body.extend(self._count_direct(table))
        if table.direct_meter is not None:
            body.extend(self._meter_direct(table))
        arms: list[tuple[str, Body]] = []
        for index, action_id in enumerate(table.action_ids):
            action = self._scope.program.actions[action_id]
            arm = self._from_record(action, table)
            if table.next_by_action is not None:
                following = table.next_by_action.get(action.name, table.base_default_next)
                arm = [*arm, *self._sequence(following, meeting)]
            arms.append((f"action == {index}", arm))
        fallback: Body = []
        if table.next_by_action is not None:
            fallback = self._sequence(table.base_default_next, meeting)
        if any(arm for _, arm in arms) or fallback:
            body.append(Effect("action = record[0]"))
            body.append(Branch(arms, fallback))
        elif (
            table.direct_counter is None
            and table.direct_meter is None
            and table.next_by_action is not None
        ):
            return []
        if table.next_by_action is None:
            hit = self._sequence(table.next_hit, meeting)
            miss = self._sequence(table.next_miss, meeting)
            body.extend(choose("hit", hit, miss))
        return body

    def _lookup(self, table: TableDef) -> str:
        name = table.name
        default = self._scope.bind("table.default", name, f"DEF_{name}")
        if not table.keys:
            return f"{default}[0]"
        parts = []
        for key in table.keys:
            text = self._scope.field_value(key.target).text
            parts.append(text if key.mask is None else f"{text} & {key.mask:#x}")
        lookup_key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        if all(k.match_type == "exact" for k in table.keys):
            get = self._scope.bind("table.get", name, f"GET_{name}")
            return f"{get}({lookup_key}) or {default}[0]"
        memo = self._scope.bind("table.memo", name, f"MEMO_{name}")
        search = self._scope.bind("table.search", name, f"SEARCH_{name}")
        if len(parts) == 1:
            return f"{memo}({lookup_key}) or {search}({lookup_key})"
        return f"{memo}(key := {lookup_key}) or {search}(key)"

    def _pick_member(self, table: TableDef) -> Branch:
        profile = self._scope.program.profiles[table.profile or ""]
        assert profile.algorithm is not None
        body, text = self._statements.hash_of(
            profile.algorithm, profile.inputs, f"at the selector of {profile.name}"
        )
        return Branch(
            [
                (
                    f"record[0] == {GROUP_TAG}",
                    [
                        *body,
                        Effect("members = record[1]"),
                        Effect(f"record = members[{text} % len(members)]"),
                    ],
                )
            ]
        )

    def _count_direct(self, table: TableDef) -> Body:
        body: Body = [Effect("cell = record[-1]")]
        unit = self._scope.units.get(table.direct_counter or "", "both")
        if unit in ("packets", "both"):
            body.append(Effect("cell[0] += 1"))
        if unit in ("bytes", "both"):
            body.append(Effect("cell[1] += len(data)"))
        return body

    def _meter_direct(self, table: TableDef) -> Body:
        definition = self._scope.program.meters[table.direct_meter or ""]
        assert definition.result is not None
        at = -2 if table.direct_counter is not None else -1
        colour = "meter.execute(len(data), now)"
        hit: Body = [
            Effect(f"meter = record[{at}]"),
            *self._statements.metered(definition.result, colour),
        ]
        return [Branch([(f"record[{at}] is not None", hit)])]

    def _from_record(self, action: Action, table: TableDef) -> Body:
        """The action, with its arguments taken from `record`."""
        names = tuple(
            self._scope.variable(f"argument {action.id} {i}", f"arg_{name}")
            for i, (name, _) in enumerate(action.params)
        )
        values = tuple(
            Value(name, 0, (1 << width) - 1, True)
            for name, (_, width) in zip(names, action.params, strict=True)
        )
        attached = (table.direct_counter is not None) + (table.direct_meter is not None)

        def take(live: frozenset[str]) -> list[str]:
            if len(live) < 3:
                return [f"{n} = record[{i}]" for i, n in enumerate(names, 1) if n in live]
            targets = ["_", *(n if n in live else "_" for n in names), *["_"] * attached]
            return [f"{', '.join(targets)} = record"]

        body: Body = [Take(names, take)] if names else []
        return [*body, *self._action(action, values)]

    def _action(self, action: Action, values: tuple[Value, ...]) -> Body:
        body = self._statements.action(action.body, values)
        if _may_exit(action.body):
            body.append(Branch([(self._scope.exit_flag(), [Leave()])]))
        return body


def _may_exit(body: tuple[Statement, ...]) -> bool:
    return any(
        _may_exit(s.then) or _may_exit(s.otherwise) if isinstance(s, If) else s.op == "exit"
        for s in body
    )
