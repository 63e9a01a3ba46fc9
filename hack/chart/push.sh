#!/usr/bin/env bash
#
# Copyright The AlterShield Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# Pushes a packaged chart, and prints its digest:
#
#   HELM=bin/helm hack/chart/push.sh CHART REPOSITORY [FLAGS OF HELM...]
#
# A chart that the repository has already is not pushed again. A released version is not replaced by another chart.

set -euo pipefail

chart=$1 repository=$2 helm=${HELM:-bin/helm}
shift 2
file=$(basename "$chart")
version=${file#altershield-operator-}

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
if out=$("$helm" pull "$repository/altershield-operator" --version "${version%.tgz}" --destination "$temp" "$@" 2>&1); then
  cmp -s "$chart" "$temp/$file" || {
    echo "push: $repository/altershield-operator has another chart of version ${version%.tgz}: released versions are not replaced; release another version" >&2
    exit 1
  }
else
  out=$("$helm" push "$chart" "$repository" "$@" 2>&1) || { echo "push: $out" >&2; exit 1; }
fi
sed -n 's/^Digest: //p' <<< "$out"
