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
# Builds kubelet and kube-proxy into bin/nodes, at the version pinned in
# hack/nodes/pins. The go command does nothing if they are up to date.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export CGO_ENABLED=0 GOWORK=off GOFLAGS=
version() { go list -C "$1" -m -f '{{.Version}}' k8s.io/kubernetes; }
version=$(version pins)
controlplane=$(version ../controlplane/pins)
if [[ $version != "$controlplane" ]]; then
  echo "hack/nodes/pins has Kubernetes $version, hack/controlplane/pins has $controlplane: make them one" >&2
  exit 1
fi
IFS=. read -r major minor _ <<<"${version#v}"
flags="-s -w -X k8s.io/component-base/version.gitTreeState=clean"
flags+=" -X k8s.io/component-base/version.gitMajor=$major -X k8s.io/component-base/version.gitMinor=$minor"
flags+=" -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/client-go/pkg/version.gitVersion=$version"
out=$PWD/../../bin/nodes
mkdir -p "$out"
[[ -x $out/kubelet ]] || echo "building kubelet and kube-proxy $version, which takes a minute or two the first time"
go build -C pins -trimpath -ldflags "$flags" -o "$out/" k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy
