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

package controlplane

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/traas-stack/altershield-operator/internal/checks"
)

// PodAddresses returns the addresses of this machine that the operator calls when a pod
// reports them, private ones first: see [PodIPAnnotation]. There may be none.
func PodAddresses(ctx context.Context) ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, p.Addr().Unmap())
		}
	}
	return called(ctx, addresses), nil
}

// called returns the addresses at which the operator would call a pod.
func called(ctx context.Context, addresses []netip.Addr) []netip.Addr {
	guard := checks.NewGuard("")
	addresses = slices.DeleteFunc(slices.Clone(addresses), func(ip netip.Addr) bool {
		network := "tcp6"
		if ip.Is4() {
			network = "tcp4"
		}
		return guard(ctx, network, netip.AddrPortFrom(ip, 1).String(), nil) != nil
	})
	rank := func(ip netip.Addr) int {
		switch {
		case ip.IsPrivate() && ip.Is4():
			return 0
		case ip.IsPrivate():
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { return cmp.Compare(rank(a), rank(b)) })
	return addresses
}
