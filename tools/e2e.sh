#!/usr/bin/env bash
# The end-to-end tests, on the cluster in KUBECONFIG (with KubeRay), else on a new kind cluster.
#
#   tools/e2e.sh [PART…]   waiting: those of test_e2e_waiting.py, alone; others; default: both.
#                          disturbed: those of test_e2e_disturbed.py, which take minutes
#                          release: the chart and the operator's image from a registry, with Helm 3 and 4
#
#   E2E_LOAD_IMAGES   command that loads locally built images, given by name, onto the cluster's nodes. Without it (and
#                     with KUBECONFIG) nothing is built: the nodes have hindcast-runtime:e2e and hindcast-operator:e2e,
#                     or can pull what E2E_RUNTIME_IMAGE and E2E_OPERATOR_IMAGE name.
#   E2E_STORAGE_CLASS StorageClass (ReadWriteMany) for the runs' data; default: the cluster's default class.
#   E2E_KEEP          if set, the release is not removed, since the cluster is deleted afterwards
#   E2E_HOST          address of this machine for pods; default: that of the cluster's only node.
#   PYTEST, WORKERS   command that starts pytest, and number of tests at a time; the Makefile sets them. The two largest tests
#                     together need a node of two processors: a third one at the same time can starve all three of pods.
set -euo pipefail
cd "$(dirname "$0")/.."

KUBERAY_VERSION=1.6.2
KUBERAY_CHARTS=https://ray-project.github.io/kuberay-helm/
KIND_NAME=hindcast-e2e

make_kind_cluster() {
  command -v kind >/dev/null || {
    echo "e2e: KUBECONFIG is not set and kind is not installed: set KUBECONFIG, or install kind" >&2
    exit 1
  }
  KUBECONFIG=$(mktemp)
  export KUBECONFIG
  trap 'kind delete cluster --name $KIND_NAME; rm -f "$KUBECONFIG"' EXIT
  kind create cluster --name $KIND_NAME --wait 120s
  helm install kuberay-operator kuberay-operator --repo $KUBERAY_CHARTS --version $KUBERAY_VERSION \
    --namespace kuberay-system --create-namespace --wait
  export E2E_KEEP=1 E2E_LOAD_IMAGES="kind load docker-image --name $KIND_NAME"
  E2E_HOST=$(docker exec "$KIND_NAME-control-plane" ip route | awk '/^default/ {print $3}')
  export E2E_HOST
}

[ -n "${KUBECONFIG:-}" ] || make_kind_cluster
export HINDCAST_REQUIRE_CLUSTER=1
if [ -n "${E2E_LOAD_IMAGES:-}" ]; then
  make images IMAGE_TAG=e2e
  $E2E_LOAD_IMAGES hindcast-operator:e2e hindcast-runtime:e2e
fi
waiting=tests/e2e/test_e2e_waiting.py release=tests/e2e/test_e2e_release.py
[ $# -gt 0 ] || set -- waiting others
for part; do
  case $part in
    waiting) $PYTEST $waiting ;;
    others)
      $PYTEST -n "${WORKERS:-2}" --dist load --maxschedchunk 1 -m "not minutes" tests/e2e --ignore $waiting \
        --ignore $release
      ;;
    disturbed) $PYTEST -m minutes tests/e2e ;;
    release) $PYTEST $release ;;
    *) echo "e2e: there is no part $part; use waiting, others, disturbed or release" >&2; exit 2 ;;
  esac
done
