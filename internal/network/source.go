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

// sourceBits is the number of leading bits of an IPv6 address that make a source: a client has
// a whole subnet.
const sourceBits = 64

// SourceOf returns the source of host:port. All invalid addresses are one source.
func SourceOf(remote string) netip.Addr {
	addr := AddressOf(remote)
	if addr.Is6() {
		if subnet, err := addr.Prefix(sourceBits); err == nil {
			return subnet.Addr()
		}
	}
	return addr
}

// AddressOf returns the whole address of host:port, as a source for ports of the cluster's
// network, where all nodes share a subnet. All invalid addresses are one source.
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
