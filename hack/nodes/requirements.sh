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
# Installs the missing packages that nodes need. Exits with 3, and the reason on
# standard error, if nodes cannot run here.

set -euo pipefail

cannot() {
  echo "no nodes can be run here: $*" >&2
  exit 3
}

[[ $(uname -s) == Linux ]] || cannot "a node is a set of Linux namespaces, and this is $(uname -s)"
[[ $(id -u) == 0 ]] || cannot "it takes root to make namespaces, cgroups and network devices"
unshare --mount --net --uts --ipc --pid --fork true 2>/dev/null || cannot "the kernel refuses namespaces"
cgroups=/sys/fs/cgroup
[[ -e $cgroups/cgroup.controllers ]] || cgroups+=/memory
probe=$cgroups/altershield-probe-$$
mkdir "$probe" 2>/dev/null || cannot "no cgroup can be made in $cgroups"
rmdir "$probe"

# A program of each required package.
declare -A packages=(
  [containerd]=containerd [ctr]=containerd [runc]=runc [/usr/lib/cni/bridge]=containernetworking-plugins
  [conntrack]=conntrack [nft]=nftables [ip]=iproute2 [busybox]=busybox-static [nsenter]=util-linux
)
missing=()
for program in "${!packages[@]}"; do
  command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
# Another busybox would need libraries that its image lacks.
if command -v busybox >/dev/null && ! grep -q static <(LC_ALL=C ldd "$(command -v busybox)" 2>&1 || echo static); then
  missing+=(busybox-static)
fi
[[ ${#missing[@]} -gt 0 ]] || exit 0
command -v apt-get >/dev/null || cannot "these packages are missing, and there is no apt-get: ${missing[*]}"

# Packages start no services: containerd runs in the nodes only.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -qq --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; } ||
  cannot "these packages cannot be installed: ${missing[*]}"
