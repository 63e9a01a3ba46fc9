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

# Signs what was released, with cosign: the image, its bills of materials and its provenance, the chart, and the checksums of all
# files. Without a key cosign asks for an identity, which a workflow has from GitHub. COSIGN_FLAGS are for each call, as in
# COSIGN_FLAGS='--key cosign.key'. It builds nothing, so that nothing of others runs beside the identity. It needs jq.

set -euo pipefail

if [[ $# != 4 ]]; then
  echo "usage: $0 IMAGE VERSION DIRECTORY CHARTS" >&2
  exit 2
fi
image=$1 version=$2 dist=$3 charts=$4
repository=${image%:*}
files=$dist/altershield-operator-image-$version
read -ra flags <<<"--yes ${COSIGN_FLAGS:-}"

predicate=$(mktemp)
trap 'rm -f "$predicate"' EXIT
jq -e .predicate "$files.provenance.json" >"$predicate"

# The image of all platforms comes first, then each platform.
{
  read -r whole _
  cosign sign "${flags[@]}" "$repository@$whole"
  cosign attest "${flags[@]}" --type slsaprovenance1 --predicate "$predicate" "$repository@$whole"
  while read -r digest platform; do
    # Some ask for the signature of what they run.
    cosign sign "${flags[@]}" "$repository@$digest"
    cosign attest "${flags[@]}" --type cyclonedx --predicate "$files-${platform//\//-}.cdx.json" "$repository@$digest"
  done
} <"$files.digests.txt"
# A tag can be made to mean another chart between its push and this.
cosign sign "${flags[@]}" "${charts#oci://}/altershield-operator@$(<"$dist/altershield-operator-chart-$version.digest.txt")"
cosign sign-blob "${flags[@]}" --bundle "$dist/checksums.txt.sigstore.json" "$dist/checksums.txt"
