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
# The first process of a node, in namespaces of its own: network, mounts, host
# name, IPC, processes. Everything of the node ends with it.
#
#   node.sh STATE NUMBER NODES CGROUP
#
# STATE is the cluster's directory, NUMBER the number of the node, NODES the number
# of nodes, CGROUP the cgroup of its pods. Node 1 also runs the control plane. There
# is no default route: a node cannot reach the internet.

set -euo pipefail

state=$1 number=$2 nodes=$3 cgroup=$4
name=node-$number
own=$state/$name
mkdir -p "$own"/{lib,log,cni}
cd "$own"

# keep NAME COMMAND... runs a service and restarts it when it ends, as systemd does.
keep() {
  local name=$1
  shift
  while :; do
    "$@" >>"$own/log/$name.log" 2>&1 || true
    sleep 1
  done &
}

mount --make-rslave /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/none
mount --bind "$own/lib" /var/lib
mount --bind "$own/log" /var/log
echo "nameserver 192.0.2.53" >/run/resolv.conf
[[ ! -e /etc/resolv.conf ]] || mount --bind /run/resolv.conf /etc/resolv.conf
# A kubelet sets these for the whole machine. Here it writes to files instead.
for tunable in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  cat "/proc/sys/$tunable" >"/run/none/${tunable//\//.}"
  mount --bind "/run/none/${tunable//\//.}" "/proc/sys/$tunable"
done
hostname "$name"

ip link set lo up
if [[ $number == 1 ]]; then
  device=uplink
  ip link add "$device" type bridge
else
  device=eth0 # the other end is at the first node's bridge
  until [[ -n $(ip -brief link show "$device" 2>/dev/null) ]]; do sleep 0.1; done
fi
ip addr add "172.30.0.$number/24" dev "$device"
ip link set "$device" up
sysctl -qw net.ipv4.ip_forward=1
# Packets to a Service need a route before kube-proxy redirects them.
ip route add 10.96.0.0/16 dev "$device"
for other in $(seq 1 "$nodes"); do
  [[ $other == "$number" ]] || ip route add "10.244.$other.0/24" via "172.30.0.$other"
done

if [[ $number == 1 ]]; then
  while read -r component command; do
    # shellcheck disable=SC2086 # a line is a name and the words of a command
    keep "$component" $command
  done <"$state/components"
fi

cat >cni/pods.conflist <<EOF
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.244.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
EOF
cat >containerd.toml <<EOF
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "altershield.local/pause:1"
  restrict_oom_score_adj = true # a machine that is confined itself may not raise it
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "$own/cni"
EOF
keep containerd containerd --config "$own/containerd.toml"
until ctr version >/dev/null 2>&1; do sleep 0.1; done
if [[ ! -e $own/images ]]; then
  for archive in "$state"/images/*.tar; do
    ctr -n k8s.io images import "$archive" >>"$own/log/images.log" 2>&1
  done
  touch "$own/images"
fi

cat >kubelet.yaml <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/plugins
resolvConf: /run/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
failCgroupV1: false
failSwapOn: false
evictionHard: {memory.available: 10Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
# The period is shorter than usual, so that a lost node is noticed sooner.
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 12
maxPods: 200
EOF
cat >kube-proxy.yaml <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $state/kube-proxy.kubeconfig}
hostnameOverride: $name
mode: nftables
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s} # the machine's, not a node's
EOF
keep kubelet "$state/bin/kubelet" --config="$own/kubelet.yaml" --kubeconfig="$state/$name.kubeconfig" \
  --hostname-override="$name" --node-ip="172.30.0.$number" --cert-dir="$own/pki"
keep kube-proxy "$state/bin/kube-proxy" --config="$own/kube-proxy.yaml"

# The first process has to reap processes whose parents have ended.
while :; do wait -n 2>/dev/null || sleep 1; done
