"""The two resources, OfflineRecording and OfflineTraining: models, YAML, hashing, CRDs; nothing heavy."""

from hindcast.api.quantity import parse_bytes
from hindcast.api.recording import OfflineRecording, OfflineRecordingSpec
from hindcast.api.training import OfflineTraining, OfflineTrainingSpec

Resource = OfflineRecording | OfflineTraining

__all__ = [
    "OfflineRecording",
    "OfflineRecordingSpec",
    "OfflineTraining",
    "OfflineTrainingSpec",
    "Resource",
    "parse_bytes",
]
