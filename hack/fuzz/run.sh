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

# Runs every fuzz target of the repository for some time, two at a time, each with one worker.
#
#   hack/fuzz/run.sh [DURATION]
#
# An input that fails is written to testdata/fuzz of its package: commit it with the fix.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# fuzz DURATION DIRECTORY TARGET
fuzz() {
  local output
  # To make inputs small takes most of the time otherwise.
  if output=$(go test "./$2" -run '^$' -fuzz "^$3\$" -fuzztime "$1" -fuzzminimizetime 20x -parallel 1 2>&1); then
    echo "$3: $(grep -oE 'execs: [0-9]+|[0-9]+/[0-9]+ completed' <<<"${output}" | tail -1)"
    return
  fi
  # The end of the time may come in the middle of an input, which is no failure (https://go.dev/issue/48591).
  if ! grep -q 'Failing input' <<<"${output}" && grep -qE '^ +context deadline exceeded$' <<<"${output}"; then
    echo "$3: no failure until the end of the time"
    return
  fi
  printf '%s: FAILED\n%s\n' "$3" "${output}" >&2
  return 1
}
export -f fuzz

targets=$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' -- *.go apis controllers hack internal routers runnable webhooks \
  | sed -E 's|^([^:]*)/[^/:]*:func (.*)$|\1 \2|')
[[ -n ${targets} ]] || { echo 'found no fuzz target' >&2; exit 1; }
xargs -P 2 -L 1 bash -c 'fuzz "$@"' fuzz "${1:-60s}" <<<"${targets}"
