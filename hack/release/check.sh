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

# Fails, with all reasons, if a version may not be released from the tree in the current directory:
#
#   hack/release/check.sh VERSION MANIFESTS
#
# MANIFESTS is the version of the image in config/manager. With TRIAL=1 only the form of VERSION is checked.

set -euo pipefail

version=$1 manifests=$2 failed=

number='(0|[1-9][0-9]*)' identifier='(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)'
# Build metadata is left out, because tags of images cannot have it.
if [[ ! $version =~ ^v$number\.$number\.$number(-$identifier(\.$identifier)*)?$ ]]; then
  echo "release-check: VERSION is \"$version\": want a semantic version with a leading v and no build metadata, as in v1.2.3" >&2
  exit 1
fi
[[ -z ${TRIAL:-} ]] || exit 0

refuse() {
  echo "release-check: $1; TRIAL=1 releases it anyway, to try it out" >&2
  failed=1
}

changes=$(git status --porcelain)
[[ -z $changes ]] || refuse "the tree differs from the commit: commit or remove these files: ${changes//$'\n'/, }"
head=$(git rev-parse --verify HEAD)
if tagged=$(git rev-parse --verify --quiet "refs/tags/$version^{commit}") && [[ $tagged != "$head" ]]; then
  refuse "the tag $version is on commit $tagged, and the tree is on $head: check out the tag"
fi
[[ $manifests == "$version" ]] ||
  refuse "the manifests name the image $manifests: set newTag in config/manager/kustomization.yaml to $version, \
run make build-installer, commit"
notes=$("$(dirname "${BASH_SOURCE[0]}")/notes.sh" "$version" 2>&1) || refuse "$notes"
[[ -z $failed ]]
