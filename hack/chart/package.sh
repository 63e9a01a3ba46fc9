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


# Packages the Helm chart, with the same bytes each time: of one version, and of one SOURCE_DATE_EPOCH, which is the time of
# the commit unless said otherwise.
#
#   HELM=bin/helm hack/chart/package.sh vX.Y.Z DIRECTORY

set -euo pipefail

version=${1:?version} directory=${2:?directory} helm=${HELM:-bin/helm}
cd "$(dirname "$0")/../.."

if [[ ! "$version" =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]]; then
  echo "package: VERSION $version is not a version: give one as in v1.2.3 or v1.2.3-rc.1" >&2
  exit 1
fi
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 0)}
export LC_ALL=C TZ=UTC0

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cp -R charts/altershield-operator "$temp/altershield-operator"
sed -i.tmp -E "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$temp/altershield-operator/Chart.yaml"
rm -f "$temp/altershield-operator/Chart.yaml.tmp"
# Helm writes the times of the files into the archive.
find "$temp/altershield-operator" -exec touch -d "@$epoch" {} +
mkdir -p "$directory"
"$helm" package "$temp/altershield-operator" --destination "$directory" > /dev/null
echo "$directory/altershield-operator-${version#v}.tgz"
