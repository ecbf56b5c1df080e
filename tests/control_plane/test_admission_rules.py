"""Every CEL rule of the CRDs accepts its good examples and refuses its bad ones, with field and message.

The rules are read from the CRDs. A rule without examples fails its test. Rules that compare a spec with the
previous one are tested in test_admission_revision.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from admission_examples import EXAMPLES, EXAMPLES_BY_SENTENCE
from admission_specs import KINDS, Node, changed_spec, load_schema, make_document, spec_with_value, walk_nodes

from api_server import ApiServer, Object, RefusalError
from hindcast.api import options


@dataclass(frozen=True)
class Rule:
    """A rule of a CRD, with the node that has the rule."""

    node: Node
    entry: Object

    @property
    def field(self) -> str:
        """The field that the API server names in a refusal."""
        return self.node.field + str(self.entry.get("fieldPath", ""))

    @property
    def sentence(self) -> str:
        return str(self.entry.get("message") or self.entry["messageExpression"])

    def __str__(self) -> str:
        return f"{self.node.kind}{self.node.dotted_path}: {self.sentence}"


def walk_state_rules() -> Iterator[Rule]:
    """Yield the rules that check a spec without the previous one."""
    for kind in KINDS:
        for node in walk_nodes(kind):
            for entry in node.schema.get("x-kubernetes-validations", []):
                if "oldSelf" not in entry["rule"]:
                    yield Rule(node, entry)


def find_refusal_causes(
    api: ApiServer, dry_run_namespace: str, kind: str, spec: Object, name: str = "test"
) -> list[tuple[str, str]]:
    """Return field and message of each cause of a refusal. The value before the message is removed."""
    with pytest.raises(RefusalError) as error_info:
        api.create(make_document(kind, spec, name), dry_run_namespace, dryRun="All")
    assert error_info.value.status == 422
    return [
        (field, re.sub(r'^Invalid value: "?\w+"?: ', "", text)) for field, text in error_info.value.causes
    ]


@pytest.mark.parametrize("rule", [rule for rule in walk_state_rules() if "message" in rule.entry], ids=str)
def test_rule_accepts_good_and_refuses_bad_examples(
    api: ApiServer, dry_run_namespace: str, rule: Rule
) -> None:
    examples = EXAMPLES_BY_SENTENCE.get(rule.sentence) or EXAMPLES.get((rule.node.dotted_path, rule.sentence))
    assert examples is not None, (
        f"{rule} has no examples; add valid and invalid values to admission_examples.py"
    )
    assert examples.good
    assert examples.bad
    for value in examples.good:
        api.create(
            make_document(rule.node.kind, spec_with_value(rule.node, value)), dry_run_namespace, dryRun="All"
        )
    for value in examples.bad:
        causes = find_refusal_causes(
            api, dry_run_namespace, rule.node.kind, spec_with_value(rule.node, value)
        )
        assert causes == [(rule.field, rule.sentence)], value


def test_every_example_belongs_to_a_rule() -> None:
    rule_keys = {(rule.node.dotted_path, rule.sentence) for rule in walk_state_rules()}
    assert EXAMPLES.keys() <= rule_keys
    assert EXAMPLES_BY_SENTENCE.keys() <= {sentence for _, sentence in rule_keys}


# -- rules whose sentence is computed: algorithms and their options ---------------------------------------------

ALGORITHM_PATHS = {"OfflineRecording": ".policy.train", "OfflineTraining": ""}


def algorithm_spec(kind: str, algorithm: str, config: Object | None = None) -> Object:
    node = next(node for node in walk_nodes(kind) if node.dotted_path == ALGORITHM_PATHS[kind])
    return spec_with_value(node, {"algorithm": algorithm} | ({} if config is None else {"config": config}))


@pytest.mark.parametrize(
    "rule", [rule for rule in walk_state_rules() if "messageExpression" in rule.entry], ids=str
)
def test_algorithm_accepts_only_its_own_options(api: ApiServer, dry_run_namespace: str, rule: Rule) -> None:
    kind, field = rule.node.kind, rule.entry["fieldPath"]
    usable = options.algorithms(kind)
    hint = "" if kind == "OfflineRecording" else " or package.module:Class"
    if field == ".algorithm":
        for algorithm in usable:
            api.create(make_document(kind, algorithm_spec(kind, algorithm)), dry_run_namespace, dryRun="All")
        for algorithm in ("Nonsense", "a:", *(set(options.schemas()) - set(usable))):
            sentence = (
                f"algorithm is {algorithm}, which an {kind} cannot use; it can use {', '.join(usable)}{hint}"
            )
            assert find_refusal_causes(api, dry_run_namespace, kind, algorithm_spec(kind, algorithm)) == [
                (rule.field, sentence)
            ]
        return
    option = field.removeprefix(".config.")
    owners = [name for name in usable if option in options.schemas()[name]["properties"]]
    default = options.schemas()[owners[0]]["properties"][option]["default"]
    config = {option: 1 if default is None else default}  # null counts as unset
    api.create(make_document(kind, algorithm_spec(kind, owners[0], config)), dry_run_namespace, dryRun="All")
    other_algorithm = next(name for name in usable if name not in owners)
    sentence = f"config.{option} does not apply to {other_algorithm}; it is a field of {', '.join(owners)}"
    assert find_refusal_causes(
        api, dry_run_namespace, kind, algorithm_spec(kind, other_algorithm, config)
    ) == [(rule.field, sentence)]


# -- the name -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_resource_name_leaves_room_for_child_names(api: ApiServer, dry_run_namespace: str, kind: str) -> None:
    (rule,) = load_schema(kind)["x-kubernetes-validations"]
    for name in ("a", "a" * 36, "cartpole-2-bc"):
        api.create(make_document(kind, changed_spec(kind, {}), name), dry_run_namespace, dryRun="All")
    for name in ("a" * 37, "1a", "a.b"):
        assert find_refusal_causes(api, dry_run_namespace, kind, changed_spec(kind, {}), name) == [
            ("<nil>", rule["message"])
        ], name
