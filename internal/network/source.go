/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package network

import (
	"net"
	"net/netip"
)

// sourceBits is how much of an IPv6 address is one source: who has one address has all
// of its subnet.
const sourceBits = 64

// SourceOf is the source of an address as host:port. Addresses that are none are one
// source together.
func SourceOf(remote string) netip.Addr {
	addr := AddressOf(remote)
	if addr.Is6() {
		if subnet, err := addr.Prefix(sourceBits); err == nil {
			return subnet.Addr()
		}
	}
	return addr
}

// AddressOf is the whole address of host:port, as a source for ports of the cluster's
// network: all nodes of a LAN share a subnet. What is no address is one together.
func AddressOf(remote string) netip.Addr {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}
