"""The operator: turns OfflineRecordings and OfflineTrainings into KubeRay RayJobs, and reports their state.

Data flow one way: `control` observes the cluster (`facts`), `planning` decides (`decision`), `manifests` builds the
objects of an attempt, `control` acts and reports.
"""
