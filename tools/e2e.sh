#!/usr/bin/env bash
# The end-to-end tests, on the cluster that KUBECONFIG names (KubeRay in it), else on a kind cluster made for them.
#
#   E2E_LOAD_IMAGES   command that brings locally built images, given by name, to the cluster's nodes. Without it (and
#                     with KUBECONFIG) nothing is built: E2E_RUNTIME_IMAGE and E2E_OPERATOR_IMAGE must be pullable.
#   E2E_STORAGE_CLASS StorageClass (ReadWriteMany) for the runs' data; default: the cluster's default class.
#   E2E_HOST          address of this machine for pods; default: that of the cluster's only node.
#   PYTEST            how pytest is started; the Makefile sets it.
set -euo pipefail
cd "$(dirname "$0")/.."

KUBERAY_VERSION=1.6.2
KUBERAY_CHARTS=https://ray-project.github.io/kuberay-helm/
KIND_NAME=hindcast-e2e

make_kind_cluster() {
  command -v kind >/dev/null || {
    echo "e2e: KUBECONFIG is not set and kind is not installed: give a cluster, or install kind" >&2
    exit 1
  }
  KUBECONFIG=$(mktemp)
  export KUBECONFIG
  trap 'kind delete cluster --name $KIND_NAME; rm -f "$KUBECONFIG"' EXIT
  kind create cluster --name $KIND_NAME --wait 120s
  helm install kuberay-operator kuberay-operator --repo $KUBERAY_CHARTS --version $KUBERAY_VERSION \
    --namespace kuberay-system --create-namespace --wait
  export E2E_LOAD_IMAGES="kind load docker-image --name $KIND_NAME"
  E2E_HOST=$(docker exec "$KIND_NAME-control-plane" ip route | awk '/^default/ {print $3}')
  export E2E_HOST
}

[ -n "${KUBECONFIG:-}" ] || make_kind_cluster
export HINDCAST_REQUIRE_CLUSTER=1
if [ -n "${E2E_LOAD_IMAGES:-}" ]; then
  export E2E_RUNTIME_IMAGE=hindcast-runtime:e2e E2E_OPERATOR_IMAGE=hindcast-operator:e2e
  make images IMAGE_TAG=e2e
  $E2E_LOAD_IMAGES "$E2E_RUNTIME_IMAGE" "$E2E_OPERATOR_IMAGE"
fi
$PYTEST tests/e2e "$@"
