"""The operator: turns OfflineRecordings and OfflineTrainings into KubeRay RayJobs, and reports their state.

Data flow one way: `control` observes the cluster (`facts`), `planning` decides (`decision`), `manifests` builds what
an attempt consists of, `control` acts and reports.
"""
