"""What the operator counts."""

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()

RECONCILES = Counter("hindcast_reconciles", "Reconciliations by result.", ["kind", "result"])
RECONCILE_SECONDS = Histogram("hindcast_reconcile_seconds", "Seconds that a reconciliation took.", ["kind"])
QUEUE_DEPTH = Gauge("hindcast_queue_depth", "Resources that wait to be reconciled.")
QUEUE_AGE = Gauge("hindcast_queue_age_seconds", "Seconds that the first of them has waited.")
API_ERRORS = Counter(
    "hindcast_api_errors", "Answers of the API server other than 2xx; none: no answer.", ["code"]
)
WRITES = Counter("hindcast_writes", "Writes that the API server carried out.", ["what"])
WATCH_STARTS = Counter("hindcast_watch_starts", "Starts of the watches, the first one included.")
OBJECTS = Gauge("hindcast_objects", "Resources by kind and state.", ["kind", "state"])
RUN_SECONDS = Histogram(
    "hindcast_run_seconds",
    "Seconds from the start of an attempt to its end.",
    ["kind", "outcome"],
    buckets=(60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600),
)
GPU_WAIT_SECONDS = Counter(
    "hindcast_gpu_wait_seconds",
    "Seconds that GPUs were held and waited: for the run to start, and for data while it trained.",
    ["namespace"],
)
LEADER = Gauge("hindcast_leader", "1 where this replica leads.")
