"""Load resources from YAML files. All problems of all files are reported at once, one sentence each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from hindcast.api.base import API_VERSION, Model
from hindcast.api.checks import check_algorithm
from hindcast.api.documents import Document, read_documents
from hindcast.api.recording import OfflineRecording, TrainPolicy
from hindcast.api.sentences import problems_of, show_value, similar
from hindcast.api.spelling import EITHER_SPELLING, IN_YAML, Spelling
from hindcast.api.training import OfflineTraining
from hindcast.errors import Problem, SpecError

Resource = OfflineRecording | OfflineTraining

KINDS: Final[dict[str, type[OfflineRecording] | type[OfflineTraining]]] = {
    "OfflineRecording": OfflineRecording,
    "OfflineTraining": OfflineTraining,
}

_YAML_SUFFIXES: Final = (".yaml", ".yml")


@dataclass(frozen=True)
class LoadedResource:
    """A resource and its location.

    Attributes:
        resource: the resource.
        file: the file, as the user named it.
        line: line in the file where the resource begins, from 1.
        document: the YAML document, with the lines of its fields.
    """

    resource: Resource
    file: str
    line: int
    document: Document

    def at(self, *steps: str | int) -> str:
        """Return `file:line` of a field: `at("spec", "input", 0, "recordingRef")`."""
        return f"{self.file}:{self.document.line_of(steps)}"

    def locate(self, problem: Problem) -> Problem:
        """Return the problem with the file and the line of its field."""
        return _locate(problem, self.file, self.document)


def load_resources(paths: Iterable[str | Path] | str | Path) -> list[LoadedResource]:
    """Return the resources of YAML files (1.2, several documents each), in the order of the files.

    Raises:
        SpecError: one line per problem, of all files.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    resources: list[LoadedResource] = []
    problems: list[Problem] = []
    for path in files:
        documents = list(read_documents(Path(path)))
        if _is_data(Path(path), documents):
            what = f"is not a resource, which is YAML; if it is data, `hindcast init {path}` writes a resource for it"
            problems.append(Problem((), what, file=str(path)))
            continue
        if not documents:
            what = f"contains no resource; begin it with apiVersion: {API_VERSION} and a kind"
            problems.append(Problem((), what, file=str(path)))
        for document in documents:
            resource, document_problems = _build_resource(document, IN_YAML)
            problems += [_locate(problem, str(path), document) for problem in document_problems]
            if resource is not None:
                resources.append(LoadedResource(resource, str(path), document.line, document))
    problems += _duplicate_problems(resources)
    if problems:
        raise SpecError.of(problems)
    return resources


def validate_resource(data: dict[str, Any]) -> Resource:
    """Return the resource of plain values, with the same checks as for a file.

    Enums may have YAML's or Python's spelling, since files of older runs have Python's.

    Raises:
        SpecError: one line per problem.
    """
    resource, problems = _build_resource(Document(data, line=1), EITHER_SPELLING)
    if resource is None:
        raise SpecError.of(problems)
    return resource


def document_of(resource: Resource, *, exclude_none: bool = False) -> dict[str, Any]:
    """Return the resource as the plain values of its YAML document, without its status and fields that are not set."""
    fields = resource.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=exclude_none, exclude={"status"}
    )
    return {"apiVersion": resource.api_version, "kind": resource.kind, **fields}


def _is_data(path: Path, documents: Sequence[Document]) -> bool:
    """Return True for a file that neither its name nor its content says to be a resource."""
    if path.suffix in _YAML_SUFFIXES or not path.is_file():
        return False
    first_value = documents[0].value if documents else None
    return not (isinstance(first_value, dict) and {"apiVersion", "kind"} & first_value.keys())


def _build_resource(document: Document, spelling: Spelling) -> tuple[Resource | None, list[Problem]]:
    problems = list(document.problems)
    if document.value is None:
        return None, problems
    model, kind_problems = _find_model(document.value)
    if model is None:
        return None, problems + kind_problems
    resource: Resource | None = None
    try:
        resource = model.model_validate(document.value, by_alias=True, by_name=False, context=spelling)
    except ValidationError as error:
        problems += problems_of(error, model, document.value)
    problems += check_algorithms(document.value, resource, spelling)
    return (None if problems else resource), sorted(
        problems, key=lambda problem: problem.line or document.line_of(problem.field)
    )


def _find_model(value: Any) -> tuple[type[OfflineRecording] | type[OfflineTraining] | None, list[Problem]]:
    if not isinstance(value, dict):
        return None, [
            Problem(
                (),
                f"the document is {show_value(value)}, expected a resource: apiVersion, kind, metadata, spec",
            )
        ]
    kind = value.get("kind")
    problems = []
    if value.get("apiVersion") != API_VERSION:
        problems.append(_field_problem(value, "apiVersion", API_VERSION))
    if not isinstance(kind, str):
        problems.append(_field_problem(value, "kind", " or ".join(KINDS)))
    elif kind not in KINDS:
        problems.append(
            Problem(("kind",), f"is '{kind}', expected {' or '.join(KINDS)}{similar(kind, KINDS)}")
        )
    return (KINDS[str(kind)] if not problems else None), problems


def _field_problem(value: dict[str, Any], name: str, expected: str) -> Problem:
    description = f"is {show_value(value[name])}" if name in value else "is missing"
    return Problem((name,), f"{description}, expected {expected}")


def check_algorithms(
    value: dict[str, Any],
    resource: Resource | None,
    spelling: Spelling | None = None,
    algorithm_kind: str | None = None,
) -> list[Problem]:
    """List the problems with the algorithm of a resource and the fields that must fit it; see `check_algorithm`.

    Args:
        value: the resource as plain values, with a valid `kind`; it may have other problems.
        resource: the resource; None if it has other problems.
        spelling: see `check_algorithm`.
        algorithm_kind: kind of resource that must be able to use the algorithm. Default: the resource's kind.
    """
    path: tuple[str, ...] = ("spec",) if value["kind"] == "OfflineTraining" else ("spec", "policy", "train")
    values: Any = value
    for step in path:
        values = values.get(step) if isinstance(values, dict) else None
    if not isinstance(values, dict):
        return []
    section: Model | None = None
    if isinstance(resource, OfflineTraining):
        section = resource.spec
    elif resource is not None:
        section = resource.spec.policy.train
    if value["kind"] == "OfflineRecording":
        values = {"algorithm": TrainPolicy.model_fields["algorithm"].default} | values
    return check_algorithm(algorithm_kind or value["kind"], values, section, path, spelling)


def _locate(problem: Problem, file: str, document: Document) -> Problem:
    line = document.line_of(problem.field) if problem.line is None else problem.line
    return replace(problem, file=file, line=line)


def _duplicate_problems(resources: list[LoadedResource]) -> list[Problem]:
    first_by_key: dict[tuple[str, str | None, str], LoadedResource] = {}
    problems = []
    for entry in resources:
        metadata = entry.resource.metadata
        key = (entry.resource.kind, metadata.namespace, metadata.name)
        if key in first_by_key:
            first_location = first_by_key[key].at("metadata", "name")
            what = (
                f"is '{metadata.name}', which is the name of another {entry.resource.kind} ({first_location}); "
                "rename one"
            )
            problems.append(entry.locate(Problem(("metadata", "name"), what)))
        first_by_key.setdefault(key, entry)
    return problems
