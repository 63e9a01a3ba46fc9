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

# Writes the bill of materials of a Go program, in CycloneDX:
#
#   TOOL=bin/cyclonedx-gomod hack/release/sbom.sh PROGRAM VERSION FILE
#
# Its bytes do not depend on the machine or the time. Its time is the time of the commit, or SOURCE_DATE_EPOCH; its serial number is
# computed from the sum of the program. The module of the operator is not looked up, because VERSION may not be published yet.

set -euo pipefail

program=$1 version=$2 file=$3

epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
time=$(date -u -d "@$epoch" +%FT%TZ)
serial=$(sha256sum "$program" | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-8\3-8\4-\5/')
flags=(-json -std -licenses -assert-licenses -notimestamp -serial "$serial" -version "$version")
export GONOPROXY=github.com/traas-stack/altershield-operator GOVCS=github.com/traas-stack/altershield-operator:off GOFLAGS=
# The hashes of the tool itself differ between machines.
"${TOOL:-bin/cyclonedx-gomod}" bin "${flags[@]}" "$program" |
  sed -e '/^        "hashes": \[$/,/^        \],$/d' -e "s/^  \"metadata\": {\$/&\n    \"timestamp\": \"$time\",/" >"$file"
