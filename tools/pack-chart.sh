#!/usr/bin/env bash
# pack-chart.sh REGISTRY OPERATOR_DIGEST RUNTIME_DIGEST FOLDER: pack the chart with both images by digest into FOLDER.
set -euo pipefail
cd "$(dirname "$0")/.."
operator=$1/hindcast-operator@$2 runtime=$1/hindcast-runtime@$3 folder=$4
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R charts/hindcast "$copy"
sed -i "s|^image: \"\"|image: $operator|; s|^defaults: {}|defaults:\n  image: $runtime|" "$copy/hindcast/values.yaml"
sed -i "s|image: hindcast-operator:.*|image: $operator|; s|image: hindcast-runtime:.*|image: $runtime|" \
  "$copy/hindcast/Chart.yaml"
helm package "$copy/hindcast" --destination "$folder"
