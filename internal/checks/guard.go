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

package checks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Guard returns an error unless an address may be dialled. It is a [net.Dialer.ControlContext],
// so it gets the resolved address.
type Guard func(ctx context.Context, network, address string, _ syscall.RawConn) error

// errGuard is the error of a guard that refuses an address.
var errGuard = errors.New("probes may not call the address")

// podNetworks4 and podNetworks6 are networks that pods use beside public ones: private
// networks, carrier networks (RFC 6598), benchmark networks (RFC 2544), and the former class E.
var (
	podNetworks4 = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/5"),
		netip.MustParsePrefix("248.0.0.0/6"), netip.MustParsePrefix("252.0.0.0/7"), netip.MustParsePrefix("254.0.0.0/8"),
	}
	podNetworks6 = []netip.Prefix{netip.MustParsePrefix("fc00::/7")}
	// metadata lists the addresses of metadata services that are not link-local: of Alibaba Cloud,
	// Azure, AWS, Google Cloud and Scaleway. AWS serves credentials and more in its network.
	metadata = []netip.Prefix{
		netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("fd00:ec2::/32"),
		netip.MustParsePrefix("fd20:ce::/32"), netip.MustParsePrefix("fd00:42::42/128"),
	}
)

// NewGuard returns a guard that allows addresses of pods. It refuses loopback, link-local and
// multicast addresses, metadata services of clouds, the denied networks, and the API server.
func NewGuard(apiServer string, denied ...netip.Prefix) Guard {
	networks := ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(podNetworks4...), ssrf.WithAllowedV6Prefixes(podNetworks6...))
	return func(ctx context.Context, network, address string, c syscall.RawConn) error {
		if err := networks.Safe(network, address, c); err != nil {
			return fmt.Errorf("%w: %w", errGuard, err)
		}
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %w", errGuard, err)
		}
		has := func(of netip.Prefix) bool { return of.Contains(to.Addr().Unmap()) }
		switch {
		case slices.ContainsFunc(metadata, has):
			return fmt.Errorf("%w: it is a metadata service of a cloud", errGuard)
		case slices.ContainsFunc(denied, has):
			return fmt.Errorf("%w: --deny-cidrs contains it", errGuard)
		}
		switch is, err := isServer(ctx, apiServer, to.Addr()); {
		case err != nil:
			return fmt.Errorf("%w: it may be the API server: %w", errGuard, err)
		case is:
			return fmt.Errorf("%w: it is the API server", errGuard)
		default:
			return nil
		}
	}
}

// isServer reports whether a URL leads to an address.
func isServer(ctx context.Context, server string, address netip.Addr) (bool, error) {
	if server == "" {
		return false, nil
	}
	u, err := url.Parse(server)
	if err != nil {
		return false, err
	}
	host := u.Hostname()
	if host == "" {
		// It has no scheme.
		if host, _, err = net.SplitHostPort(server); err != nil {
			host = server
		}
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return false, err
	}
	for _, a := range addresses {
		if a.Unmap() == address.Unmap() {
			return true, nil
		}
	}
	return false, nil
}

// place is the address of a pod, and the ports that may be called.
type place struct {
	ip          string
	hostNetwork bool
	// ports that containers of the pod declare.
	ports map[int32]bool
}

// placeOf returns the place of a pod. Ports of init containers count only if they are sidecars.
func placeOf(pod *corev1.Pod) place {
	at := place{ip: pod.Status.PodIP, hostNetwork: pod.Spec.HostNetwork || isOfNode(pod), ports: map[int32]bool{}}
	declare := func(c *corev1.Container) {
		for i := range c.Ports {
			if p := c.Ports[i].Protocol; p == "" || p == corev1.ProtocolTCP {
				at.ports[c.Ports[i].ContainerPort] = true
			}
		}
	}
	for i := range pod.Spec.Containers {
		declare(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			declare(c)
		}
	}
	return at
}

// isOfNode reports whether the IP of a pod is an IP of its node.
func isOfNode(pod *corev1.Pod) bool {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return false
	}
	is := func(of string) bool {
		host, err := netip.ParseAddr(of)
		return err == nil && host.Unmap() == ip.Unmap()
	}
	return is(pod.Status.HostIP) || slices.ContainsFunc(pod.Status.HostIPs, func(of corev1.HostIP) bool { return is(of.IP) })
}

// address returns the IP of the pod; it is not valid if the pod has none.
func (at place) address() netip.Addr {
	ip, _ := netip.ParseAddr(at.ip) // not valid with an error
	return ip
}

// refuses returns why a port may not be called; no reason if it may.
func (at place) refuses(port int32) (refused probeResult) {
	switch {
	case at.hostNetwork:
		refused.Reason, refused.Message = "HostNetwork", "it is in the network of its node, whose ports are not called"
	case !at.ports[port]:
		refused.Reason = "PortNotDeclared"
		refused.Message = fmt.Sprintf("none of its containers declares port %d, and no other port is called", port)
	case !at.address().IsValid():
		refused.Reason, refused.Message = "NoIP", "it has no IP"
	}
	return refused
}

// portOfService returns the port of a Service whose backends may be called, or why they may not be
// called. A Service of type ExternalName, or without a selector, may lead to any address.
func portOfService(s *corev1.Service, port int32) (of *corev1.ServicePort, refused probeResult) {
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP)
	})
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		refused.Reason, refused.Message = "ExternalName", "it is of type ExternalName, which is not called: name a Service with a selector"
	case len(s.Spec.Selector) == 0:
		refused.Reason, refused.Message = "NoSelector", "it has no selector, and may lead anywhere: name a Service with a selector"
	case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone:
		refused.Reason, refused.Message = "NoClusterIP", "it has no clusterIP: name a Service that is not headless, or probe with target Pods"
	case i < 0:
		refused.Reason = "PortNotDeclared"
		refused.Message = fmt.Sprintf("it has no TCP port %d, and no other port is called: name one of its ports", port)
	default:
		of = &s.Spec.Ports[i]
	}
	return of, refused
}

// backends returns the addresses of Ready pods behind a port of a Service that may be called like
// pods, or why none of them may be called.
func backends(s *corev1.Service, of *corev1.ServicePort, pods []corev1.Pod) (at []netip.AddrPort, refused probeResult) {
	refused = probeResult{Outcome: probeBad, Reason: "NoBackend", Message: "no pod that it selects is Ready"}
	for i := range pods {
		pod := &pods[i]
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if pod.DeletionTimestamp != nil || !ready && !s.Spec.PublishNotReadyAddresses {
			continue
		}
		where, port := placeOf(pod), targetPort(of, pod)
		if no := where.refuses(port); no.Reason != "" {
			no.Message = "pod " + pod.Name + ": " + no.Message
			refused = no
			continue
		}
		at = append(at, netip.AddrPortFrom(where.address(), uint16(port))) //nolint:gosec // a port of a container
	}
	if len(at) > 0 {
		refused = probeResult{}
	}
	return at, refused
}

// targetPort returns the port of a pod to which a port of a Service leads; 0 if the pod has no
// port of the given name.
func targetPort(of *corev1.ServicePort, pod *corev1.Pod) int32 {
	switch {
	case of.TargetPort.Type == intstr.Int && of.TargetPort.IntVal == 0:
		return of.Port
	case of.TargetPort.Type == intstr.Int:
		return of.TargetPort.IntVal
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, p := range c.Ports {
			if p.Name == of.TargetPort.StrVal {
				return p.ContainerPort
			}
		}
	}
	return 0
}
