"""The two resources, OfflineRecording and OfflineTraining: models, YAML, hashes, CRDs. Imports no torch and no Ray."""

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.hashing import course_hash, spec_hash
from hindcast.api.loading import LoadedResource, Resource, document_of, load_resources, validate_resource
from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.api.quantity import parse_bytes
from hindcast.api.recording import OfflineRecording, OfflineRecordingSpec
from hindcast.api.training import OfflineTraining, OfflineTrainingSpec

__all__ = [
    "EnvironmentSpec",
    "LoadedResource",
    "ModelOptions",
    "ModelSpec",
    "OfflineRecording",
    "OfflineRecordingSpec",
    "OfflineTraining",
    "OfflineTrainingSpec",
    "Resource",
    "course_hash",
    "document_of",
    "load_resources",
    "parse_bytes",
    "spec_hash",
    "validate_resource",
]
