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

# Prints the section of a version in CHANGELOG.md of the current directory:
#
#   hack/release/notes.sh VERSION

set -euo pipefail

version=$1
if [[ $version == *-* ]]; then
  echo "A prerelease. CHANGELOG.md lists its changes under Unreleased."
  exit
fi
awk -v title="## [${version#v}]" '
  index($0, title) == 1 { found = 1; next }
  found && (/^## / || /^\[[^]]+\]: /) { exit }
  found && (begun || NF) { begun = 1; print }
  END { exit !found }
' CHANGELOG.md || {
  echo "CHANGELOG.md has no section \"## [${version#v}]\": give the changes under Unreleased the version and the date" >&2
  exit 1
}
